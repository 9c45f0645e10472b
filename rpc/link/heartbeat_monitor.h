#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peer_table.h"
#include "gradwire/rpc/membership/failure_detector.h"

namespace gradwire::rpc {

// Finds out which workers respond: it reports events to the FailureDetector, sends the heartbeats, and
// carries out the detector's decisions. Thread-safe. Calls the sink and the host without holding a lock. Its
// arguments must outlive it and the callbacks of the timers.
class HeartbeatMonitor {
 public:
  using Event = void (FailureDetector::*)(uint64_t, absl::Time, FailureDetector::Actions&);

  class Host {
   public:
    virtual ~Host() = default;
    // All connections.
    virtual std::vector<std::shared_ptr<Link>> links() const = 0;
    // Must connect to the peer on another thread, because no connection with it is open.
    virtual void probe_soon(const std::shared_ptr<Peer>& peer) = 0;
    virtual void lose(const std::shared_ptr<Peer>& peer, WorkerState state, absl::Status reason) = 0;
  };

  HeartbeatMonitor(const Link::Context& context, Host& host, const HeartbeatOptions& options)
      : context_(context), host_(host), options_(options), detector_(options) {}

  // After this call the monitor does nothing.
  void end();

  // Reports an event of a peer to the detector. Ignored if the peer is lost. `why` is used in messages.
  void notice(const Peer& peer, Event event, const absl::Status& why);
  // Stops watching a peer, because it is lost.
  void remove(const Peer& peer);
  std::size_t watched() const;

 private:
  using Events = absl::FunctionRef<void(FailureDetector&, absl::Time, FailureDetector::Actions&)>;

  void notice(Events events, const absl::Status& why);
  void on_tick();

  const Link::Context& context_;
  Host& host_;
  const HeartbeatOptions options_;

  mutable Mutex mutex_;  // Lock order: before the locks of the group and of a Peer.
  FailureDetector detector_ ABSL_GUARDED_BY(mutex_);
  absl::Time tick_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::rpc
