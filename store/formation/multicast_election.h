#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/tcp/endpoint.h"

namespace gradwire::store {

// Which of the processes that announce themselves hosts the group's store. A state machine without sockets or
// clock: datagrams and times in, a decision out.
//
// A candidate that says it is settled hosts. Until there is one: with a fixed world size N, once N candidates
// (this one counts) are known, the lowest number settles; all N are needed, so all see the same set. In an
// open group, if none has been heard for kListenTime, the lowest of those heard settles.
//
// A candidate that has not been heard for kForgetAfter is forgotten. Not thread-safe.
class MulticastElection {
 public:
  static constexpr absl::Duration kListenTime = absl::Seconds(1);
  static constexpr absl::Duration kForgetAfter = absl::Seconds(3);
  static constexpr std::size_t kMaxCandidates = 65'536;

  MulticastElection(std::string group_name, int world_size, uint64_t candidate, int port, absl::Time now);

  // What this process sends now.
  std::string announcement() const;
  // A datagram from anyone at all. True if it was another member's.
  bool observe(absl::string_view datagram, const std::string& sender, absl::Time now);

  struct Decision {
    bool self = false;
    Endpoint endpoint;  // Of another's store.
    uint64_t candidate = 0;
  };
  std::optional<Decision> decide(absl::Time now);
  // The decision led nowhere.
  void forget(uint64_t candidate) { others_.erase(candidate); }
  // This process hosts the group.
  void settle() { settled_ = true; }

  // Another member, which says another world size.
  struct Contradiction {
    std::string host;
    int world_size = 0;
  };
  const std::optional<Contradiction>& contradiction() const { return contradiction_; }
  int known() const { return static_cast<int>(others_.size()) + 1; }

 private:
  struct Candidate {
    Endpoint endpoint;
    bool settled;
    absl::Time heard;
  };

  const std::string group_name_;
  const int world_size_;
  const uint64_t candidate_;
  const int port_;
  const absl::Time start_;

  absl::btree_map<uint64_t, Candidate> others_;
  std::optional<Contradiction> contradiction_;
  bool settled_ = false;
};

}  // namespace gradwire::store
