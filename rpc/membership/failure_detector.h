#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "gradwire/rpc/options.h"

namespace gradwire::rpc {

// One worker's opinion of the others that it has connections with: a pure state machine, events and the time
// in, Actions out.
//
//   unwatched -> alive     a connection stands
//   alive -> suspect       silent for suspect_after, or its last connection broke
//   suspect -> alive       a message of it came, or it is connected again
//   suspect -> dead        its host refuses connections: nobody listens where it listened. Certain.
//   suspect -> accused     silent for dead_after: for the group to decide (remove()), or itself, by a message
//
// A worker that is not watched is not suspected: one that is never called is known by the group's log alone.
// Time in which this worker itself did not run does not count as another's silence.
//
// Not thread-safe. Workers are named by their incarnations.
class FailureDetector {
 public:
  explicit FailureDetector(const HeartbeatOptions& options) : options_(options) {}

  enum class State : uint8_t { kUnwatched, kAlive, kSuspect, kDead };
  enum class Why : uint8_t { kConnected, kHeard, kSilent, kConnectionBroke, kRefused };
  struct Change {
    uint64_t worker;
    State state;
    Why why;
  };
  struct Actions {
    std::vector<Change> changes;
    // The workers that are due a heartbeat.
    std::vector<uint64_t> heartbeat;
    // To be connected to again.
    std::vector<uint64_t> probe;
    // Silent for so long that the group should decide; again at each tick while that is so.
    std::vector<uint64_t> accuse;
  };

  // A connection is being made: from here on silence counts.
  void attempted(uint64_t worker, absl::Time now, Actions& actions);
  // A connection was established, both ends introduced.
  void connected(uint64_t worker, absl::Time now, Actions& actions);
  // Something came from it since the last time this was said.
  void heard(uint64_t worker, absl::Time now, Actions& actions);
  // Its last connection ended unasked.
  void disconnected(uint64_t worker, absl::Time now, Actions& actions);
  // An attempt to connect ended: its host refused the connection, or did not answer.
  void refused(uint64_t worker, absl::Time now, Actions& actions);
  void unreachable(uint64_t worker, absl::Time now, Actions& actions);
  // It is dead or has left: by what the group, or it itself, says.
  void remove(uint64_t worker) { watched_.erase(worker); }

  // To be called at next(), or a little later.
  void tick(absl::Time now, Actions& actions);
  // InfiniteFuture while nobody is watched.
  absl::Time next() const;

  State state(uint64_t worker) const;
  std::size_t watched() const { return watched_.size(); }

 private:
  // A host that restarts its network may refuse once.
  static constexpr int kRefusals = 2;
  static constexpr absl::Duration kAfterRefusal = absl::Milliseconds(5);
  // Doubled with each attempt, up to the second: a process that is being killed goes on accepting for some
  // milliseconds.
  static constexpr absl::Duration kAfterUnreachable = absl::Milliseconds(5);
  static constexpr absl::Duration kAfterManyUnreachable = absl::Milliseconds(200);

  struct Watched {
    State state = State::kUnwatched;
    bool connected = false;
    // An attempt to connect is under way.
    bool probing = false;
    int refusals = 0;
    absl::Duration after_unreachable = kAfterUnreachable;
    absl::Time heard;
    absl::Time next_probe = absl::InfiniteFuture();
  };
  Watched& watch(uint64_t worker, absl::Time now);
  void set_state(uint64_t worker, Watched& watched, State state, Why why, Actions& actions);
  void probe(uint64_t worker, Watched& watched, Actions& actions);

  const HeartbeatOptions options_;
  absl::flat_hash_map<uint64_t, Watched> watched_;
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Time next_round_ = absl::InfiniteFuture();
};

}  // namespace gradwire::rpc
