#include "gradwire/rpc/link/heartbeat_monitor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log.h"
#include "gradwire/rpc/link/departures_codec.h"

namespace gradwire::rpc {
namespace {

// Sends the heartbeat on all links of the peer. Each link skips it if it has sent something else since the
// last one, unless the heartbeat must report the end of a connection.
void send_heartbeat(Peer& peer) {
  const Peer::Beat beat = peer.beat();
  proto::Envelope envelope;
  to_proto(beat.sent, *envelope.mutable_heartbeat()->mutable_sent());
  const std::string header = envelope.SerializeAsString();
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
      peer->set_suspect(change.state != FailureDetector::State::kAlive);
      changed.emplace_back(std::move(peer), change);
    }
    // A timer that is scheduled for later is not cancelled. When it runs, on_tick() finds that it was
    // replaced.
    if (const absl::Time next = detector_.next(); next < tick_at_) {
      tick_at_ = next;
      context_.timers.schedule(next, [this] { on_tick(); });
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

void HeartbeatMonitor::on_tick() {
  {
    MutexLock lock(mutex_);
    // This timer was replaced by an earlier one, which has scheduled the next.
    if (context_.timers.clock().now() < tick_at_) return;
    tick_at_ = absl::InfiniteFuture();
  }
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
