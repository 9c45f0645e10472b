#include "gradwire/rpc/link/heartbeat_monitor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log.h"
#include "gradwire/rpc/link/departures_codec.h"

namespace gradwire::rpc {
namespace {

void send_heartbeat(Peer& peer) {
  const Peer::Beat beat = peer.beat();
  proto::Envelope envelope;
  to_proto(beat.sent, *envelope.mutable_heartbeat()->mutable_sent());
  const std::string header = envelope.SerializeAsString();
  for (const std::shared_ptr<Link>& link : beat.links) link->beat(header, beat.news);
}

}  // namespace

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
        log(LogLevel::kInfo, "worker \"", context_.self.name, "\" suspects worker \"", worker.name,
            "\": ", change.why == FailureDetector::Why::kSilent ? "it is silent" : why.message());
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
                                                          "\" is dead: it has been silent for ",
                                                          absl::FormatDuration(options_.dead_after))));
  });
}

void HeartbeatMonitor::notice(const Peer& peer, Event event, const absl::Status& why) {
  notice(
      [&](FailureDetector& detector, absl::Time now, FailureDetector::Actions& actions) {
        // Another thread may have seen something newer meanwhile.
        const bool connected = peer.is_connected();
        const bool stale = (event == &FailureDetector::connected && !connected) ||
                           (event == &FailureDetector::disconnected && connected);
        if (peer.status().ok() && !stale) (detector.*event)(peer.worker.incarnation, now, actions);
      },
      why);
}

void HeartbeatMonitor::on_tick() {
  {
    MutexLock lock(mutex_);
    // Replaced by an earlier one, which has set the next.
    if (context_.timers.clock().now() < tick_at_) return;
    tick_at_ = absl::InfiniteFuture();
  }
  std::vector<uint64_t> heard;
  for (const std::shared_ptr<Link>& link : host_.links()) {
    if (const uint64_t from = link->heard_from(); from != 0) heard.push_back(from);
  }
  notice(
      [&](FailureDetector& detector, absl::Time now, FailureDetector::Actions& actions) {
        for (const uint64_t worker : heard) detector.heard(worker, now, actions);
        detector.tick(now, actions);
      },
      absl::UnavailableError("it does not answer"));
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
