#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/process/host.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/link/departures_codec.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/transport/refused.h"

// How Peers finds out who answers, and what becomes of those who do not.
namespace gradwire::rpc {
namespace {

bool in_this_network(const proto::WorkerRecord& record) {
  return !record.network().empty() && record.network() == network_id();
}

}  // namespace

void Peers::watch(absl::FunctionRef<void(FailureDetector&, absl::Time, FailureDetector::Actions&)> event,
                  const absl::Status& why) {
  const absl::Time now = timers_.clock().now();
  FailureDetector::Actions actions;
  // What `actions` names, in its order.
  std::vector<std::shared_ptr<Peer>> changed, beating, probed, accused;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    event(detector_, now, actions);
    const auto peer_of = [this](uint64_t worker)
                             ABSL_NO_THREAD_SAFETY_ANALYSIS { return by_incarnation_.at(worker); };
    for (const FailureDetector::Change& change : actions.changes) {
      changed.push_back(peer_of(change.worker));
      changed.back()->suspect = change.state != FailureDetector::State::kAlive;
    }
    for (uint64_t worker : actions.heartbeat) beating.push_back(peer_of(worker));
    for (uint64_t worker : actions.probe) probed.push_back(peer_of(worker));
    for (uint64_t worker : actions.accuse) accused.push_back(peer_of(worker));
    if (const absl::Time next = detector_.next(); next < tick_at_) {
      tick_at_ = next;
      timers_.schedule(next, [this] { on_tick(); });
    }
  }
  for (std::size_t i = 0; i < changed.size(); ++i) {
    const FailureDetector::Change& change = actions.changes[i];
    const Worker& worker = changed[i]->worker;
    switch (change.state) {
      case FailureDetector::State::kAlive:
        sink_.on_worker_state(worker, WorkerState::kAlive);
        break;
      case FailureDetector::State::kSuspect:
        log(LogLevel::kInfo, "worker \"", self_.name, "\" suspects worker \"", worker.name,
            "\": ", change.why == FailureDetector::Why::kSilent ? "it is silent" : why.message());
        sink_.on_worker_state(worker, WorkerState::kSuspect);
        break;
      case FailureDetector::State::kDead:
        lose(changed[i], WorkerState::kDead,
             absl::UnavailableError(absl::StrCat("worker \"", worker.name,
                                                 "\" is dead: its process has ended (", why.message(), ")")));
        break;
      case FailureDetector::State::kUnwatched:
        break;
    }
  }
  for (const std::shared_ptr<Peer>& peer : beating) send_heartbeat(peer);
  for (const std::shared_ptr<Peer>& peer : probed) probe_soon(peer);
  for (const std::shared_ptr<Peer>& peer : accused) {
    const std::string& name = peer->worker.name;
    sink_.on_unresponsive(peer->worker, absl::UnavailableError(absl::StrCat(
                                            "worker \"", name, "\" is dead: it has been silent for ",
                                            absl::FormatDuration(options_.heartbeat.dead_after))));
  }
}

void Peers::watch(const Peer& peer,
                  void (FailureDetector::*event)(uint64_t, absl::Time, FailureDetector::Actions&),
                  const absl::Status& why) {
  watch(
      [&](FailureDetector& detector, absl::Time now, FailureDetector::Actions& actions) {
        // What is told here may have been overtaken by what another thread saw.
        const bool stale = (event == &FailureDetector::connected && peer.links == 0) ||
                           (event == &FailureDetector::disconnected && peer.links > 0);
        if (!peer.lost && !stale) (detector.*event)(peer.worker.incarnation, now, actions);
      },
      why);
}

void Peers::on_tick() {
  {
    MutexLock lock(mutex_);
    // Replaced by an earlier one, which has set the next.
    if (timers_.clock().now() < tick_at_) return;
    tick_at_ = absl::InfiniteFuture();
  }
  watch(
      [this](FailureDetector& detector, absl::Time now, FailureDetector::Actions& actions)
          ABSL_NO_THREAD_SAFETY_ANALYSIS {
            for (const auto& [number, link] : links_) {
              if (!link->introduced_ || link->peer_ == nullptr) continue;
              const uint64_t arrived = link->connection_->bytes_arrived();
              const bool progress = std::exchange(link->arrived_, arrived) != arrived;
              if (link->heard_.exchange(false) || progress) {
                detector.heard(link->peer_->worker.incarnation, now, actions);
              }
            }
            detector.tick(now, actions);
          },
      absl::UnavailableError("it does not answer"));
}

void Peers::send_heartbeat(const std::shared_ptr<Peer>& peer) {
  std::vector<std::shared_ptr<Link>> links;
  proto::Envelope envelope;
  bool news = false;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, link] : links_) {
      if (link->introduced_ && link->greeted_ && link->peer_ == peer) links.push_back(link);
    }
    to_proto(departures_locked(*peer), *envelope.mutable_heartbeat()->mutable_sent());
    if (!links.empty()) news = std::exchange(peer->untold, false);
  }
  const std::string header = envelope.SerializeAsString();
  for (const std::shared_ptr<Link>& link : links) {
    // What was sent since the last one has served as well.
    if (!link->sent_.exchange(false) || news) (void)link->depart({header, {}});
  }
}

// A connection to somebody ended before he had introduced himself.
void Peers::attempt_failed(const std::shared_ptr<Peer>& peer, const std::string& transport,
                           const absl::Status& reason) {
  bool worked = false;
  {
    MutexLock lock(mutex_);
    if (stopping_ || peer->lost) return;
    worked = peer->worked.contains(transport);
  }
  // Where a transport has never worked, its failure says nothing of the worker: shared memory between containers is
  // refused though both live.
  if (!worked && !transport.empty() && ways_to(*peer).size() > 1) {
    give_up(*peer, transport, reason);
    probe_soon(peer);
    return;
  }
  const bool nobody_listens = transport::is_refused(reason) && (worked || in_this_network(peer->record));
  watch(*peer, nobody_listens ? &FailureDetector::refused : &FailureDetector::unreachable, reason);
}

void Peers::probe_soon(const std::shared_ptr<Peer>& peer) {
  if (options_.executor == nullptr) {
    timers_.schedule(timers_.clock().now(), [this, peer] { probe(peer); });
  } else {
    (void)options_.executor->post_clean([this, peer] { probe(peer); });
  }
}

void Peers::probe(const std::shared_ptr<Peer>& peer) {
  {
    MutexLock lock(mutex_);
    if (stopping_ || peer->lost) return;
  }
  absl::StatusOr<std::shared_ptr<Link>> link = link_to(peer);
  if (link.ok()) return;
  watch(*peer, &FailureDetector::unreachable, link.status());
}

void Peers::lose(const Worker& worker, WorkerState state, const absl::Status& reason) {
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    auto found = by_incarnation_.find(worker.incarnation);
    if (found == by_incarnation_.end()) return;
    peer = found->second;
  }
  lose(peer, state, reason);
}

void Peers::lose(const std::shared_ptr<Peer>& peer, WorkerState state, absl::Status reason) {
  reason = with_worker(std::move(reason), peer->worker.name);
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(mutex_);
    if (stopping_ || peer->lost) return;
    peer->lost = true;
    peer->left = state == WorkerState::kLeft;
    peer->lost_reason = reason;
    peer->link = nullptr;
    detector_.remove(peer->worker.incarnation);
    lost_.push_back(peer->worker.incarnation);
    forget_lost_locked();
    // One who leaves ends its connections itself.
    for (const auto& [number, link] : links_) {
      if (link->peer_ == peer && state == WorkerState::kDead) links.push_back(link);
    }
  }
  // It may live all the same: it must know that nobody here listens to it any more.
  const std::string header = goodbye(declared_dead(peer->worker.name, self_.name));
  for (const std::shared_ptr<Link>& link : links) {
    if (!link->opened_.load(std::memory_order_acquire))
      continue;  // connect() sees for itself that the peer is lost.
    (void)link->connection_->send({header, {}});
    link->connection_->close(reason, absl::Milliseconds(100));
  }
  sink_.on_worker_lost(peer->worker, state, reason);
}

namespace {

// Waits for any sign of life.
class SignOfLife : public transport::ConnectionListener {
 public:
  void on_message(transport::Connection&, transport::Message message) override {
    proto::Envelope envelope;
    const bool another = envelope.ParseFromString(message.header) && envelope.has_goodbye() &&
                         absl::IsAborted(status_from_proto(envelope.goodbye().reason()));
    end(another ? Directory::Life::kDead : Directory::Life::kAlive);
  }
  uint64_t max_message_bytes() const override { return Link::kMaxHelloBytes; }
  void on_closed(transport::Connection&, absl::Status reason) override {
    end(transport::is_refused(reason) ? Directory::Life::kDead : Directory::Life::kUnknown);
  }

  Directory::Life wait(absl::Duration patience) {
    const absl::Time deadline = Clock::system().now() + patience;
    MutexLock lock(mutex_);
    while (!ended_ && Clock::system().now() < deadline) {
      changed_.wait_for(mutex_, deadline - Clock::system().now());
    }
    return life_;
  }

 private:
  void end(Directory::Life life) {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    life_ = life;
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Directory::Life life_ ABSL_GUARDED_BY(mutex_) = Directory::Life::kUnknown;
};

}  // namespace

Directory::Life Peers::look_for(const proto::WorkerRecord& record, absl::Duration patience) {
  // A Hello of nobody, which an agent answers with a Goodbye.
  proto::Envelope envelope;
  proto::Hello& hello = *envelope.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_name(self_.name);
  hello.set_to_incarnation(record.incarnation());
  int tried = 0, refused = 0;
  for (const auto& transport : transports_) {
    for (const proto::Address& address : record.addresses()) {
      if (address.transport() != transport->name() || transport->name() == "loopback" ||
          !transport->may_reach(address.address())) {
        continue;
      }
      ++tried;
      auto sign = std::make_shared<SignOfLife>();
      auto connection = transport->connect(address.address(), sign, patience);
      if (!connection.ok()) continue;
      (void)(*connection)->send({envelope.SerializeAsString(), {}});
      const Directory::Life life = sign->wait(patience);
      (*connection)->close(absl::CancelledError("only asked whether somebody is there"));
      if (life == Directory::Life::kAlive) return life;
      if (life == Directory::Life::kDead) ++refused;
    }
  }
  // One refusal alone may only mean that this way does not lead there.
  return tried > 0 && refused == tried ? Directory::Life::kDead : Directory::Life::kUnknown;
}

}  // namespace gradwire::rpc
