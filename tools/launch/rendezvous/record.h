#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/rendezvous/types.h"

namespace gradwire::rendezvous {

// The record that the nodes of a job share, decoded. proto/rendezvous.proto says what each field means.

inline constexpr char kStateKey[] = "rendezvous/state";
std::string beat_key(absl::string_view node_id);

inline constexpr int kMaxNodes = 4096;            // participants and waiting together
inline constexpr int kMaxRoles = 64;              // of one node
inline constexpr int kMaxWorkers = 1 << 20;       // of one node
inline constexpr std::size_t kMaxName = 255;      // bytes of a host, address, role, run id, node id
inline constexpr std::size_t kMaxMessage = 4096;  // bytes of a failure's message
inline constexpr std::size_t kMaxRecord = std::size_t{32} << 20;

// As the protocol numbers them.
enum class Phase { kJoining = 1, kRunning, kClosed };

struct Member {
  std::string id;
  Node node;
  std::optional<int> rank;  // the wanted one, with Settings::fixed_ranks
  bool ready = false;
  bool done = false;
  bool operator==(const Member&) const = default;
};

struct Record {
  std::string origin;
  uint64_t version = 0;
  std::string run_id;
  Settings settings;
  Phase phase = Phase::kJoining;
  int64_t round = 0;
  int restarts_used = 0;
  int call_off = 0;
  std::vector<Member> participants;
  std::vector<Member> waiting;
  std::optional<Address> store;
  std::optional<Failure> failure;
  bool succeeded = false;
  bool operator==(const Record&) const = default;
};

// Texts are cut to their bounds, and a failure's numbers brought into theirs.
std::string encode(const Record& record);
// InvalidArgument for what is not a record: too long, a number or a count out of bounds, an id or fixed rank
// twice, or fields that do not fit the phase. Control characters do not get through to a terminal.
absl::StatusOr<Record> decode(absl::string_view bytes);

}  // namespace gradwire::rendezvous
