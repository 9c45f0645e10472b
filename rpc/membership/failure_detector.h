#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/rpc/core/options.h"

namespace gradwire::rpc {

// One worker's view of which peers are alive: a pure state machine. Its inputs are events and the time, its
// outputs Actions. It watches the peers with which this worker has, or tries to make, a connection.
//
//   unwatched -> alive     A connection is open.
//   alive -> suspect       The peer is silent for suspect_after, or its last connection broke.
//   suspect -> alive       A message from the peer arrives, or it is connected again.
//   suspect -> unwatched   The peer has never been connected, and its host is not found by its name.
//   suspect -> dead        The peer's host refuses connections: no process listens at the peer's address.
//                          This is certain.
//   suspect -> accused     The peer is silent for dead_after. The group decides (remove()), or a message from
//                          the peer makes it alive again.
//
// A peer that is not watched is never suspected: only the group's log reports its end. Time in which this
// worker itself did not run does not count as silence of its peers.
//
// Not thread-safe. Workers are named by their incarnations.
class FailureDetector {
 public:
  explicit FailureDetector(const HeartbeatOptions& options) : options_(options) {}

  enum class State : uint8_t { kUnwatched, kAlive, kSuspect, kDead };
  enum class Why : uint8_t { kConnected, kReceived, kSilent, kConnectionBroke, kRefused, kUnwatched };
  struct Change {
    uint64_t worker;
    State state;
    Why why;
  };
  struct Actions {
    std::vector<Change> changes;
    // Workers to which a heartbeat must be sent.
    std::vector<uint64_t> heartbeat;
    // Workers to which a connection must be attempted.
    std::vector<uint64_t> probe;
    // Workers that have been silent for so long that the group should decide. Repeated at each round while
    // that lasts.
    std::vector<uint64_t> accuse;
  };

  // An attempt to connect begins. From here on silence counts.
  void attempted(uint64_t worker, absl::Time now, Actions& actions);
  // A connection is open, and both sides have introduced themselves.
  void connected(uint64_t worker, absl::Time now, Actions& actions);
  // Something has arrived from the worker since the last call of this method.
  void received(uint64_t worker, absl::Time now, Actions& actions);
  // The last connection with the worker has ended, and this worker did not end it.
  void disconnected(uint64_t worker, absl::Time now, Actions& actions);
  // An attempt to connect failed: the worker's host refused the connection (refused), or did not answer
  // (unreachable).
  void refused(uint64_t worker, absl::Time now, Actions& actions);
  void unreachable(uint64_t worker, absl::Time now, Actions& actions);
  // An attempt to connect failed, because the worker's host was not found by its name. If the worker was
  // connected before, this counts as unreachable(): the name of a host that has gone may be gone, too.
  // Otherwise it says nothing about the worker, and ends the watch that the attempt began.
  void unresolved(uint64_t worker, absl::Time now, Actions& actions);
  // This worker had no descriptor or memory left for the attempt. That says nothing about the peer: its state
  // stays as it is, and its silence is not counted until an attempt can be made.
  void postponed(uint64_t worker, absl::Time now, Actions& actions);
  // Stops watching a worker that is dead or has left, according to the group or to the worker itself.
  void remove(uint64_t worker) { watched_.erase(worker); }

  // Call at the time next(), or a little later.
  void tick(absl::Time now, Actions& actions);
  // InfiniteFuture while no worker is watched.
  absl::Time next() const;

  State state(uint64_t worker) const;
  std::size_t watched() const { return watched_.size(); }

 private:
  // Number of refusals that prove a death. One is not enough: a host that restarts its network may refuse
  // once.
  static constexpr int kRefusals = 2;
  static constexpr absl::Duration kAfterRefusal = absl::Milliseconds(5);
  // Delay after a failed attempt: it begins with the first constant and doubles up to the second. The first
  // attempts follow quickly, because a process that is being killed still accepts connections for some
  // milliseconds.
  static constexpr absl::Duration kAfterUnreachable = absl::Milliseconds(5);
  static constexpr absl::Duration kAfterManyUnreachable = absl::Milliseconds(200);
  // Delay after an attempt that this worker could not make.
  static constexpr absl::Duration kAfterPostponed = absl::Milliseconds(100);

  struct Watched {
    State state = State::kUnwatched;
    bool connected = false;
    bool was_connected = false;
    // Whether an attempt to connect is in progress.
    bool probing = false;
    int refusals = 0;
    absl::Duration after_unreachable = kAfterUnreachable;
    // Time of the last sign of life.
    absl::Time last_received;
    absl::Time next_probe = absl::InfiniteFuture();
    // Time of the last attempt that was postponed, if no attempt was made since.
    absl::Time postponed_at = absl::InfiniteFuture();
  };
  Watched& watch(uint64_t worker, absl::Time now);
  void set_state(uint64_t worker, Watched& watched, State state, Why why, Actions& actions);
  void probe(uint64_t worker, Watched& watched, Actions& actions);

  const HeartbeatOptions options_;
  HashMap<uint64_t, Watched> watched_;
  absl::Time last_tick_ = absl::InfinitePast();
  // Time of the next round: heartbeats, and the check of all silences.
  absl::Time next_round_ = absl::InfiniteFuture();
};

}  // namespace gradwire::rpc
