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

// The decoded form of the record that the nodes of a job share. proto/rendezvous.proto explains the fields.

inline constexpr char kStateKey[] = "rendezvous/state";
std::string beat_key(absl::string_view node_id);

inline constexpr int kMaxNodes = 4096;            // Participants and waiting nodes together.
inline constexpr int kMaxRoles = 64;              // Roles of one node.
inline constexpr int kMaxWorkers = 1 << 20;       // Workers of one node.
inline constexpr std::size_t kMaxName = 255;      // Bytes of a host, address, role, run id or node id.
inline constexpr std::size_t kMaxMessage = 4096;  // Bytes of a failure's message.
inline constexpr std::size_t kMaxRecord = std::size_t{32} << 20;

// The numbers are those of the protocol.
enum class Phase { kJoining = 1, kRunning, kClosed };

struct Member {
  std::string id;
  Node node;
  std::optional<int> rank;  // The requested rank, with Settings::fixed_ranks.
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

// Serializes a record. Cuts texts, and clamps the numbers of a failure, to their limits.
std::string encode(const Record& record);
// Parses a record and replaces control characters in its texts. InvalidArgument for an invalid record: too
// long, a number or count out of range, a duplicate id or fixed rank, or fields that contradict the phase.
absl::StatusOr<Record> decode(absl::string_view bytes);

}  // namespace gradwire::rendezvous
