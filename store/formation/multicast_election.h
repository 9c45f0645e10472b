#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/calls/endpoint.h"

namespace gradwire::store {

// Elects the process that hosts the group's store, among the processes that announce themselves. It is a
// state machine without sockets or clock: it gets datagrams and times, and returns a decision.
//
// A candidate that announces itself as settled is the host. While no candidate is settled: with a fixed world
// size N, the lowest of N candidates (including this one) settles once N are known; because all N are needed,
// all processes see the same set. In an open group, the lowest known candidate settles after it has listened
// for kListenTime.
//
// A candidate is forgotten if no announcement of it arrives for kForgetAfter. Not thread-safe.
class MulticastElection {
 public:
  static constexpr absl::Duration kListenTime = absl::Seconds(1);
  static constexpr absl::Duration kForgetAfter = absl::Seconds(3);
  static constexpr std::size_t kMaxCandidates = 65'536;

  MulticastElection(std::string group_name, int world_size, uint64_t candidate, int port, absl::Time now);

  // The datagram that this process sends now.
  std::string announcement() const;
  // Processes a received datagram, which may come from any program. Returns true if it must be answered by an
  // announcement: it came from another member, or is the question of an observer.
  bool observe(absl::string_view datagram, const std::string& sender, absl::Time now);

  struct Decision {
    bool self = false;
    Endpoint endpoint;  // The other process's store; unused if `self`.
    uint64_t candidate = 0;
  };
  // Returns the host, or nullopt while it is undecided.
  std::optional<Decision> decide(absl::Time now);
  // Drops a candidate whose store could not be reached.
  void forget(uint64_t candidate) { others_.erase(candidate); }
  // Notes that this process hosts the group's store.
  void settle() { settled_ = true; }

  // Another member that announced a different world size.
  struct Contradiction {
    std::string host;
    int world_size = 0;
  };
  const std::optional<Contradiction>& contradiction() const { return contradiction_; }
  // Number of known candidates, including this one.
  int known() const { return static_cast<int>(others_.size()) + 1; }

 private:
  struct Candidate {
    Endpoint endpoint;
    bool settled;
    absl::Time last_seen;
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

// For a process that is not a member, but searches for the store of the group.

// The datagram with which it asks the members to announce themselves. They do not count it as a candidate.
std::string multicast_question(absl::string_view group_name);
// A member of the group, as it has announced itself.
struct AnnouncedMember {
  uint64_t candidate = 0;
  Endpoint endpoint;  // Its store.
  bool settled = false;
};
// Parses a received datagram, which may come from any program. Nullopt if it is not the announcement of a
// member of this group.
std::optional<AnnouncedMember> parse_announcement(absl::string_view datagram, const std::string& sender,
                                                  absl::string_view group_name);

}  // namespace gradwire::store
