#include "gradwire/rpc/link/heartbeat_monitor.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/log/log.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/link/peers.h"

namespace gradwire::rpc {
namespace {

// Sends the heartbeat on all links of the peer. Each link skips it if it has sent something else since the
// last one, unless the heartbeat must report the end of a connection.
void send_heartbeat(Peer& peer) {
  const Peer::Beat beat = peer.beat();
  EnvelopeBox envelope;
  to_proto(beat.sent, *envelope->mutable_heartbeat()->mutable_sent());
  const std::string header = envelope->SerializeAsString();
  for (const std::shared_ptr<Link>& link : beat.links) link->beat(header, beat.forced);
}

}  // namespace

// Applies events to the detector, and carries out its decisions:
//   1. With the lock held: pass the events to the detector, set the states of the peers, and schedule the
//      next tick.
//   2. Without it: report changes of state, then send heartbeats, connect, and report silent workers. These
//      steps call the sink and the host, which may take their own locks.
void HeartbeatMonitor::notice(Events events, const absl::Status& why) {
  FailureDetector::Actions actions;
  std::vector<std::pair<std::shared_ptr<Peer>, FailureDetector::Change>> changed;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    events(detector_, context_.timers.clock().now(), actions);
    for (const FailureDetector::Change& change : actions.changes) {
      std::shared_ptr<Peer> peer = context_.group.peer(change.worker);
      if (peer == nullptr) continue;
      // A member counts as alive from its join on. So its first connection, from which on the detector
      // watches it, changes nothing for the sink. A suspect peer that turns out to be dead must still be
      // lost.
      const bool is_new = peer->set_suspect(change.state != FailureDetector::State::kAlive);
      if (is_new || change.state == FailureDetector::State::kDead) {
        changed.emplace_back(std::move(peer), change);
      }
    }
    // A timer that is scheduled for later is not cancelled. When it runs, on_tick() finds that it was
    // replaced.
    if (const absl::Time next = detector_.next(); next < tick_at_) {
      schedule_tick_locked(next);
    }
  }
  for (const auto& [peer, change] : changed) {
    const Worker& worker = peer->worker;
    switch (change.state) {
      case FailureDetector::State::kAlive:
        context_.sink.on_worker_state(worker, WorkerState::kAlive);
        break;
      case FailureDetector::State::kSuspect:
        log(LogLevel::kInfo, "worker \"", context_.self.name, "\" suspects worker \"", worker.name, "\": ",
            change.why == FailureDetector::Why::kSilent ? "no message arrives from it" : why.message());
        context_.sink.on_worker_state(worker, WorkerState::kSuspect);
        break;
      case FailureDetector::State::kDead:
        host_.lose(peer, WorkerState::kDead,
                   absl::UnavailableError(absl::StrCat(
                       "worker \"", worker.name, "\" is dead: its process has ended (", why.message(), ")")));
        break;
      case FailureDetector::State::kUnwatched:
        break;
    }
  }
  const auto each = [this](const std::vector<uint64_t>& workers, auto&& action) {
    for (const uint64_t worker : workers) {
      if (const std::shared_ptr<Peer> peer = context_.group.peer(worker)) action(peer);
    }
  };
  each(actions.heartbeat, [](const std::shared_ptr<Peer>& peer) { send_heartbeat(*peer); });
  each(actions.probe, [this](const std::shared_ptr<Peer>& peer) { host_.probe_soon(peer); });
  each(actions.accuse, [this](const std::shared_ptr<Peer>& peer) {
    context_.sink.on_unresponsive(
        peer->worker, absl::UnavailableError(absl::StrCat("worker \"", peer->worker.name,
                                                          "\" is dead: no message arrived from it for ",
                                                          absl::FormatDuration(options_.dead_after))));
  });
}

void HeartbeatMonitor::notice(const Peer& peer, Event event, const absl::Status& why) {
  notice(
      [&](FailureDetector& detector, absl::Time now, FailureDetector::Actions& actions) {
        // Two threads may report in the wrong order: an event that the peer's present state contradicts is
        // dropped.
        const bool connected = !peer.view().links.empty();
        const bool stale = (event == &FailureDetector::connected && !connected) ||
                           (event == &FailureDetector::disconnected && connected);
        if (peer.status().ok() && !stale) (detector.*event)(peer.worker.incarnation, now, actions);
      },
      why);
}

// A tick judges the silence of the peers, so it must come after what they have sent was read. The steps:
//   1. The timer asks for the tick, once.
//   2. The thread that reads the connections runs it, when it has read everything that had arrived. If that
//      thread stands still, the tick comes late. The detector then finds the gap between its rounds, and does
//      not count it as silence.
//   3. The tick schedules the next timer.
void HeartbeatMonitor::on_timer() {
  {
    MutexLock lock(mutex_);
    const absl::Time now = context_.timers.clock().now();
    // An earlier timer has replaced this one, or the tick was asked for already.
    if (ended_ || now < tick_at_ || asked_at_ != absl::InfiniteFuture()) return;
    if (after_reading_ && !watches_stuck_) {
      context_.timers.schedule(now + kStuckAfter, [this] { check_stuck(); });
      watches_stuck_ = true;
    }
    asked_at_ = now;
  }
  if (!after_reading_) return on_tick();
  try {
    (void)after_reading_([this] { on_tick(); });
  } catch (...) {
    // The timer runs again, and asks again.
    MutexLock lock(mutex_);
    asked_at_ = absl::InfiniteFuture();
    throw;
  }
}

void HeartbeatMonitor::schedule_tick_locked(absl::Time when) {
  context_.timers.schedule(when, [this] { on_timer(); });
  tick_at_ = when;
}

void HeartbeatMonitor::check_stuck() {
  absl::Duration stuck;
  {
    MutexLock lock(mutex_);
    watches_stuck_ = false;
    if (ended_ || asked_at_ == absl::InfiniteFuture()) return;
    const absl::Time now = context_.timers.clock().now();
    stuck = now - asked_at_;
    if (stuck < kStuckAfter) {
      // This check was for an earlier tick, which has come.
      watches_stuck_ = true;
      context_.timers.schedule(asked_at_ + kStuckAfter, [this] { check_stuck(); });
      return;
    }
    is_stuck_ = true;
  }
  const std::string reader = reader_state_ ? reader_state_() : "the thread that reads them is blocked";
  log(LogLevel::kWarning, "worker \"", context_.self.name, "\" has read no message for ",
      absl::FormatDuration(stuck), ": ", reader,
      "; until it goes on, this worker sends no heartbeats and declares no worker dead");
}

// A tick that fails is followed by the next one: a worker without ticks sends no heartbeats, and the others
// would declare it dead.
void HeartbeatMonitor::on_tick() {
  if (run_contained("a round of heartbeats", [this] { tick(); })) return;
  run_or_end("scheduling the next round of heartbeats", [this] {
    MutexLock lock(mutex_);
    const absl::Time next = context_.timers.clock().now() + options_.interval;
    if (!ended_ && next < tick_at_) schedule_tick_locked(next);
  });
}

void HeartbeatMonitor::tick() {
  bool was_stuck = false;
  {
    MutexLock lock(mutex_);
    tick_at_ = absl::InfiniteFuture();
    asked_at_ = absl::InfiniteFuture();
    was_stuck = std::exchange(is_stuck_, false);
  }
  if (was_stuck) log(LogLevel::kInfo, "worker \"", context_.self.name, "\" reads messages again");
  // Arriving messages are only marked on their links, so that no message takes the monitor's lock. The marks
  // are collected here, once per tick.
  std::vector<uint64_t> senders;
  for (const std::shared_ptr<Link>& link : host_.links()) {
    if (const uint64_t from = link->take_recent_sender(); from != 0) senders.push_back(from);
  }
  notice(
      [&](FailureDetector& detector, absl::Time now, FailureDetector::Actions& actions) {
        for (const uint64_t worker : senders) detector.received(worker, now, actions);
        detector.tick(now, actions);
      },
      absl::UnavailableError("it does not respond"));
}

void HeartbeatMonitor::remove(const Peer& peer) {
  MutexLock lock(mutex_);
  detector_.remove(peer.worker.incarnation);
}

void HeartbeatMonitor::end() {
  MutexLock lock(mutex_);
  ended_ = true;
}

std::size_t HeartbeatMonitor::watched() const {
  MutexLock lock(mutex_);
  return detector_.watched();
}

}  // namespace gradwire::rpc
