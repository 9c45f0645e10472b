#include "gradwire/rpc/link/peers.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/process/host.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/transport/refused.h"

namespace gradwire::rpc {

Peers::Peers(Transports transports, Sink& sink, TimerQueue& timers, const Options& options)
    : transports_(std::move(transports)),
      options_(options),
      shared_{self_,
              *this,
              sink,
              *this,
              timers,
              options.limits,
              options.observers == nullptr ? std::make_shared<Observers>() : options.observers,
              options.transfers == nullptr ? std::make_shared<TransferWatch>(timers, TransferWatch::Options())
                                           : options.transfers},
      monitor_(shared_, *this, options.heartbeat) {}

Peers::~Peers() { shutdown(absl::CancelledError("the agent was destroyed"), absl::ZeroDuration()); }

absl::StatusOr<proto::WorkerRecord> Peers::listen(const Worker& self) {
  self_ = self;
  proto::WorkerRecord record;
  record.set_name(self.name);
  record.set_id(self.id);
  record.set_incarnation(self.incarnation);
  record.set_network(network_id());
  for (const auto& transport : transports_) {
    absl::StatusOr<std::string> address =
        transport->listen([this, name = transport->name()](const std::shared_ptr<transport::Connection>& c) {
          return accept(name, c);
        });
    if (!address.ok()) {
      return with_context(address.status(),
                          absl::StrCat("worker \"", self.name, "\" cannot listen over ", transport->name()));
    }
    proto::Address* entry = record.add_addresses();
    entry->set_transport(transport->name());
    entry->set_address(*address);
    log(LogLevel::kDebug, "worker \"", self.name, "\" listens over ", transport->name(), " at ",
        absl::CHexEscape(*address));
  }
  return record;
}

// Anybody can open connections, so the number of those without an admitted Hello is limited. The link is
// counted before its first message can arrive: on_open() and on_closed() remove it from unadmitted_.
std::shared_ptr<transport::ConnectionListener> Peers::accept(
    const std::string& transport, const std::shared_ptr<transport::Connection>& connection) {
  auto link = std::make_shared<Link>(shared_, next_link_++, nullptr, transport);
  {
    MutexLock lock(mutex_);
    if (shared_.stopping || unadmitted_.size() >= options_.limits.max_unadmitted) return nullptr;
    unadmitted_.insert(link->number());
  }
  link->accept(connection);
  if (on_made(link).ok()) return link;
  MutexLock lock(mutex_);
  unadmitted_.erase(link->number());
  return nullptr;
}

// Under the same lock as the start of a shutdown: a link either is in the table that shutdown() reads, or is
// refused.
absl::Status Peers::on_made(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  if (shared_.stopping) return absl::FailedPreconditionError("the agent has been shut down");
  links_[link->number()] = link;
  return absl::OkStatus();
}

void Peers::set_workers(const Worker& self, const std::vector<WorkerAddress>& workers,
                        const std::vector<Worker>& gone) {
  fill(self, workers, gone);
  release_held();
}

void Peers::add_worker(const WorkerAddress& worker) {
  add(worker);
  release_held();
}

void Peers::wait_for_group(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  waiting_.push_back(link);
}

void Peers::release_held() {
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(mutex_);
    // release() may register the link again, for the next change.
    links.swap(waiting_);
  }
  for (const std::shared_ptr<Link>& link : links) link->release();
}

std::vector<std::shared_ptr<Link>> Peers::links() const {
  std::vector<std::shared_ptr<Link>> links;
  MutexLock lock(mutex_);
  for (const auto& [number, link] : links_) links.push_back(link);
  return links;
}

void Peers::count(AgentTables& tables) const {
  PeerTable::count(tables);
  tables.watched_workers = monitor_.watched();
  tables.held_bytes = shared_.held_bytes;
  tables.observers = shared_.observers->size();
  MutexLock lock(mutex_);
  tables.links = links_.size();
  for (const auto& [number, link] : links_) tables.parted_messages += link->parted_messages();
  tables.unadmitted_links = unadmitted_.size();
}

absl::StatusOr<std::shared_ptr<Link>> Peers::open_link(const Peer& peer) const {
  if (shared_.stopping) return absl::FailedPreconditionError("the agent has been shut down");
  return peer.link();
}

absl::StatusOr<std::shared_ptr<Link>> Peers::link_to(const std::shared_ptr<Peer>& peer) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Link> open, open_link(*peer));
  if (open != nullptr) return open;
  // Other threads that want this peer wait for this connection instead of making another.
  MutexLock connecting(peer->connecting);
  GRADWIRE_ASSIGN_OR_RETURN(open, open_link(*peer));
  if (open != nullptr) return open;
  absl::Status last;
  const std::vector<Route> routes = routes_to(*peer);
  // Try the routes in order. A transport that fails is given up only if another one is left.
  for (std::size_t i = 0; i < routes.size(); ++i) {
    absl::StatusOr<std::shared_ptr<Link>> link = connect(routes[i], peer);
    if (link.ok()) return link;
    last = link.status();
    if (i + 1 < routes.size()) peer->give_up(routes[i].transport->name(), last);
  }
  if (!last.ok()) return with_context(last, absl::StrCat("connecting to worker \"", peer->worker.name, "\""));
  return absl::UnavailableError(absl::StrCat("no transport reaches worker \"", peer->worker.name,
                                             "\": enable a transport that both workers have"));
}

std::vector<Peers::Route> Peers::routes_to(const Peer& peer) const {
  std::vector<Route> routes;
  for (const auto& transport : transports_) {
    if ((transport->name() == "loopback") != peer.is_self || peer.has_given_up(transport->name())) continue;
    for (const proto::Address& address : peer.record.addresses()) {
      if (address.transport() == transport->name() && transport->may_reach(address.address())) {
        routes.push_back({transport.get(), &address.address()});
      }
    }
  }
  return routes;
}

absl::StatusOr<std::shared_ptr<Link>> Peers::connect(const Route& route, const std::shared_ptr<Peer>& peer) {
  log(LogLevel::kDebug, "worker \"", self_.name, "\" connects to worker \"", peer->worker.name, "\" over ",
      route.transport->name(), " at ", absl::CHexEscape(*route.address));
  auto link = std::make_shared<Link>(shared_, next_link_++, peer, route.transport->name());
  GRADWIRE_RETURN_IF_ERROR(link->connect(*route.transport, *route.address, options_.connect_timeout));
  if (!peer->is_self) monitor_.notice(*peer, &FailureDetector::attempted, absl::OkStatus());
  return link;
}

// Called by the side that admits a Hello, so both sides call it for each connection.
void Peers::on_open(const Link& link, const std::shared_ptr<Peer>& peer, bool restored) {
  {
    MutexLock lock(mutex_);
    unadmitted_.erase(link.number());
  }
  if (peer->is_self) return;
  const std::string& name = peer->worker.name;
  log(LogLevel::kInfo, "worker \"", self_.name, "\" is connected to worker \"", name, "\" over ",
      link.transport());
  if (link.made_here()) {
    // Warn only after another transport has reached the peer. Before that, the peer may have left or died,
    // which is not the transport's fault.
    for (const auto& [transport, reason] : peer->take_given_up()) {
      log(LogLevel::kWarning, "worker \"", self_.name, "\" no longer uses the transport \"", transport,
          "\" to worker \"", name, "\": ", reason.message());
    }
  }
  monitor_.notice(*peer, &FailureDetector::connected, absl::OkStatus());
  if (restored) shared_.sink.on_link_restored(peer->worker);
}

// The order of the steps matters:
//   1. Remove the link from its peer, so that new calls use another one.
//   2. Remove it from the table, which shutdown() waits for.
//   3. Report the end to the sink, which fails or repeats the calls on the link.
//   4. Report what follows from the end: messages that it has settled, and messages that may be lost while
//      another connection is open. Without another connection, on_open() reports that when the next one is
//      admitted.
//   5. If no connection is left, find out whether the worker lives.
void Peers::on_closed(const std::shared_ptr<Link>& link, const std::shared_ptr<Peer>& peer,
                      const absl::Status& reason) {
  {
    MutexLock lock(mutex_);
    unadmitted_.erase(link->number());
    std::erase(waiting_, link);
  }
  shared_.observers->remove(link->number());
  const Peer::Ended ended = peer == nullptr ? Peer::Ended() : peer->remove(link);
  {
    MutexLock lock(mutex_);
    links_.erase(link->number());
    links_changed_.notify_all();
  }
  if (peer == nullptr) return;
  shared_.sink.on_link_closed(peer->worker, *link, reason);
  log(LogLevel::kInfo, "worker \"", self_.name, "\": the connection to worker \"", peer->worker.name,
      "\" over ", link->transport(), " has ended: ", reason.message());
  if (ended.settled) shared_.sink.on_settled(peer->worker);
  const bool gone = shared_.stopping || ended.lost || peer->is_self;
  if (ended.reachable && !gone) shared_.sink.on_link_restored(peer->worker);
  if (gone || ended.reachable) return;
  if (!ended.introduced) return attempt_failed(peer, link->transport(), reason);
  // The connection broke because of the bytes that arrived on it. Another transport may work.
  if (absl::IsInvalidArgument(reason) && link->made_here() && routes_to(*peer).size() > 1) {
    peer->give_up(link->transport(), reason);
  }
  monitor_.notice(*peer, &FailureDetector::disconnected, reason);
}

void Peers::attempt_failed(const std::shared_ptr<Peer>& peer, const std::string& transport,
                           const absl::Status& reason) {
  const bool worked = peer->has_worked(transport);
  // If a transport has never reached the peer, its failure proves nothing about the worker: for example,
  // shared memory between two containers is refused although both workers are alive.
  if (!worked && routes_to(*peer).size() > 1) {
    peer->give_up(transport, reason);
    return probe_soon(peer);
  }
  const bool same_network = !peer->record.network().empty() && peer->record.network() == network_id();
  // A refused connection proves that the process has ended only if the address is certainly its own. On
  // another network the same address may belong to another host.
  const bool nobody_listens = transport::is_refused(reason) && (worked || same_network);
  monitor_.notice(*peer, nobody_listens ? &FailureDetector::refused : &FailureDetector::unreachable, reason);
}

void Peers::probe_soon(const std::shared_ptr<Peer>& peer) {
  if (options_.executor == nullptr) {
    shared_.timers.schedule(shared_.timers.clock().now(), [this, peer] { probe(peer); });
  } else {
    (void)options_.executor->post_clean([this, peer] { probe(peer); });
  }
}

void Peers::probe(const std::shared_ptr<Peer>& peer) {
  if (shared_.stopping || !peer->status().ok()) return;
  absl::StatusOr<std::shared_ptr<Link>> link = link_to(peer);
  if (!link.ok()) monitor_.notice(*peer, &FailureDetector::unreachable, link.status());
}

void Peers::lose(const Worker& worker, WorkerState state, const absl::Status& reason) {
  if (const std::shared_ptr<Peer> found = peer(worker.incarnation)) lose(found, state, reason);
}

void Peers::lose(const std::shared_ptr<Peer>& peer, WorkerState state, absl::Status reason) {
  if (shared_.stopping) return;
  reason = with_worker(std::move(reason), peer->worker.name);
  // Only the first loss continues here. From this line on calls to the worker fail, and its connections are
  // not admitted.
  const std::optional<Peer::Links> links = peer->lose(state, reason);
  if (!links.has_value()) return;
  monitor_.remove(*peer);
  mark_lost(peer->worker);
  // A worker that leaves ends its connections itself. A worker that was declared dead may be alive: the
  // Goodbye lets it know that this worker accepts nothing from it any more.
  if (state == WorkerState::kDead) {
    const std::string header = goodbye(declared_dead(peer->worker.name, self_.name));
    for (const std::shared_ptr<Link>& link : *links) link->part(header, reason, absl::Milliseconds(100));
  }
  shared_.sink.on_worker_lost(peer->worker, state, reason);
}

// The steps:
//   1. Set `stopping`: no link is added, and no peer is lost, from here on.
//   2. Send a Goodbye on every link and close it.
//   3. Wait until the links have sent what was queued, up to `flush`.
//   4. Join the threads of the transports. After that no callback runs.
//   5. Break the cycles of ownership between links and peers.
void Peers::shutdown(const absl::Status& reason, absl::Duration flush) {
  std::vector<std::shared_ptr<Link>> open;
  {
    MutexLock lock(mutex_);
    if (!shared_.stopping.exchange(true)) {
      for (const auto& [number, link] : links_) open.push_back(link);
    }
  }
  monitor_.end();
  const std::string header = goodbye(reason);
  for (const std::shared_ptr<Link>& link : open) link->part(header, reason, flush);
  // A link is removed from the table when its connection has flushed. The transports cut the remaining ones.
  const absl::Time deadline = Clock::system().now() + flush;
  mutex_.lock();
  while (!links_.empty() && Clock::system().now() < deadline) {
    links_changed_.wait_for(mutex_, deadline - Clock::system().now());
  }
  mutex_.unlock();
  for (const auto& transport : transports_) transport->shutdown();
  shared_.transfers->end();
  clear_links();
  MutexLock lock(mutex_);
  waiting_.clear();
  links_.clear();
  unadmitted_.clear();
}

}  // namespace gradwire::rpc
