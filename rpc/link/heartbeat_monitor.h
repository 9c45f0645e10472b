#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/membership/failure_detector.h"

namespace gradwire::rpc {

// Runs a task on the thread that reads the connections, after everything was read that had arrived before
// this call. Returns false, and never runs the task, if the connections are not read any more.
using AfterReading = std::function<bool(absl::AnyInvocable<void()> task)>;
// Says which thread reads the connections, and what it does, for example "thread 4711 handles an answer".
using ReaderState = std::function<std::string()>;

// Finds out which workers respond: it reports events to the FailureDetector, sends the heartbeats, and
// carries out the detector's decisions. It does all this behind the thread that reads the connections. While
// that thread stands still, a worker therefore accuses nobody and sends no heartbeats, so that the others
// suspect this worker. Thread-safe. Calls the sink and the host without holding a lock. Its arguments must
// outlive it, the callbacks of the timers, and the tasks.
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

  // The time after which a thread that reads no messages is reported in the log.
  static constexpr absl::Duration kStuckAfter = absl::Seconds(1);

  // `after_reading` and `reader_state`: empty if the transports have threads of their own.
  HeartbeatMonitor(const Link::Context& context, Host& host, const HeartbeatOptions& options,
                   AfterReading after_reading, ReaderState reader_state)
      : context_(context),
        host_(host),
        options_(options),
        after_reading_(std::move(after_reading)),
        reader_state_(std::move(reader_state)),
        detector_(options) {}

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
  // The time for a tick has come. Asks for on_tick().
  void on_timer();
  void on_tick();
  void tick();
  void schedule_tick_locked(absl::Time when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reports in the log if the tick that was asked for does not come.
  void check_stuck();

  const Link::Context& context_;
  Host& host_;
  const HeartbeatOptions options_;
  const AfterReading after_reading_;
  const ReaderState reader_state_;

  mutable Mutex mutex_;  // Lock order: before the locks of the group and of a Peer.
  FailureDetector detector_ ABSL_GUARDED_BY(mutex_);
  absl::Time tick_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // When the tick was asked for that has not come yet; InfiniteFuture if none was.
  absl::Time asked_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Whether check_stuck() is scheduled, and whether it has reported.
  bool watches_stuck_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stuck_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::rpc
