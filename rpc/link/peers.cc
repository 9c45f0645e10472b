#include "gradwire/rpc/link/peers.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/transport/refused.h"

namespace gradwire::rpc {
namespace {

// Time in which a worker that has left ends its connections. It sends what is queued for two seconds at most.
constexpr absl::Duration kLastMessages = absl::Seconds(5);

}  // namespace

// A worker is in by_incarnation_ from its join on. by_id_ and by_name_ have the newest worker of each id and
// name. A worker whose id or name was taken over by another one is superseded: messages of it can still be
// handled, but calls to it fail. mark_lost() bounds the tables.
void PeerTable::fill(const Worker& self, const std::vector<WorkerAddress>& workers,
                     const std::vector<Worker>& gone) {
  MutexLock lock(mutex_);
  self_.id = self.id;
  for (const WorkerAddress& worker : workers) add_locked(worker);
  for (const Worker& worker : gone) gone_.insert(worker.incarnation);
}

void PeerTable::add(const WorkerAddress& worker) {
  MutexLock lock(mutex_);
  add_locked(worker);
}

void PeerTable::add_locked(const WorkerAddress& address) {
  const Worker& worker = address.worker;
  if (by_incarnation_.contains(worker.incarnation)) return;
  auto peer = std::make_shared<Peer>(address, worker.incarnation == self_.incarnation);
  for (std::shared_ptr<Peer>* slot : {&by_id_[worker.id], &by_name_[worker.name]}) {
    if (*slot != nullptr) by_incarnation_[(*slot)->worker.incarnation].superseded = true;
    *slot = peer;
  }
  by_incarnation_[worker.incarnation].peer = std::move(peer);
}

std::vector<Worker> PeerTable::workers(bool lost_too) const {
  std::vector<Worker> workers;
  MutexLock lock(mutex_);
  for (const auto& [id, peer] : by_id_) {
    if (lost_too || peer->status().ok()) workers.push_back(peer->worker);
  }
  return workers;
}

absl::StatusOr<std::shared_ptr<Peer>> PeerTable::find(const std::string& name, int32_t id) const {
  MutexLock lock(mutex_);
  if (name.empty()) {
    if (auto found = by_id_.find(id); found != by_id_.end()) return found->second;
  } else if (auto found = by_name_.find(name);
             found != by_name_.end() && (id < 0 || id == found->second->worker.id)) {
    return found->second;
  }
  std::vector<std::string> names;
  for (const auto& [peer_id, peer] : by_id_) {
    names.push_back(absl::StrCat("\"", peer->worker.name, "\" (", peer_id, ")"));
  }
  return absl::NotFoundError(
      absl::StrCat("worker ", name.empty() ? absl::StrCat("with id ", id) : absl::StrCat("\"", name, "\""),
                   " not found in the group; its workers are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::shared_ptr<Peer>> PeerTable::find(const Worker& worker) const {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(worker.incarnation);
  if (found == by_incarnation_.end()) {
    return absl::NotFoundError(absl::StrCat("worker \"", worker.name, "\" is not a member of the group"));
  }
  if (found->second.superseded) {
    return absl::AbortedError(
        absl::StrCat("worker \"", worker.name, "\" was restarted as a new incarnation"));
  }
  return found->second.peer;
}

std::shared_ptr<Peer> PeerTable::peer(uint64_t incarnation) const {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : found->second.peer;
}

absl::StatusOr<Worker> PeerTable::find_by_incarnation(uint64_t incarnation) const {
  if (const std::shared_ptr<Peer> found = peer(incarnation)) return found->worker;
  return absl::NotFoundError(
      absl::StrCat("incarnation ", absl::Hex(incarnation), " not found among the workers of the group"));
}

absl::Status PeerTable::status(const Worker& worker) const {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, find(worker));
  return peer->status();
}

GroupView::Standing PeerTable::standing(uint64_t incarnation, std::string* name) const {
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    if (gone_.contains(incarnation)) return Standing::kGone;
    auto found = by_incarnation_.find(incarnation);
    if (found == by_incarnation_.end()) return Standing::kStranger;
    peer = found->second.peer;
  }
  if (name != nullptr) *name = peer->worker.name;
  const WorkerState state = peer->state();
  if (state == WorkerState::kLeft) return Standing::kLeft;
  return state == WorkerState::kDead ? Standing::kDead : Standing::kMember;
}

bool PeerTable::is_stranger_locked(uint64_t incarnation) const {
  return !by_incarnation_.contains(incarnation) && !gone_.contains(incarnation);
}

bool PeerTable::knows_owners(const ReferenceList& references) const {
  if (references.empty()) return true;
  MutexLock lock(mutex_);
  for (const proto::Reference& reference : references) {
    if (is_stranger_locked(reference.owner())) return false;
  }
  return true;
}

Departures PeerTable::departures(uint64_t incarnation) const {
  const std::shared_ptr<Peer> found = peer(incarnation);
  return found == nullptr ? Departures() : found->departures();
}

bool PeerTable::require(uint64_t incarnation, const Departures& sent) {
  const std::shared_ptr<Peer> found = peer(incarnation);
  // False for an unknown worker: nothing is known to have settled.
  return found != nullptr && found->require(sent);
}

bool PeerTable::settled(uint64_t incarnation) {
  const std::shared_ptr<Peer> found = peer(incarnation);
  return found != nullptr && found->settled();
}

void PeerTable::mark_lost(const Worker& worker) {
  MutexLock lock(mutex_);
  // A group that workers join and leave for months must not grow without a bound. The newest lost workers
  // keep their entries, so that errors can name the cause. Of older ones only the incarnation is remembered,
  // so that they are refused.
  lost_.push_back(worker.incarnation);
  while (lost_.size() > GoneWorkers::kMax) {
    const auto oldest = by_incarnation_.find(lost_.front());
    lost_.pop_front();
    if (oldest == by_incarnation_.end()) continue;
    const std::shared_ptr<Peer> peer = std::move(oldest->second.peer);
    by_incarnation_.erase(oldest);
    gone_.insert(peer->worker.incarnation);
    // Another worker may have the name or the id by now.
    if (auto found = by_name_.find(peer->worker.name); found != by_name_.end() && found->second == peer)
      by_name_.erase(found);
    if (auto found = by_id_.find(peer->worker.id); found != by_id_.end() && found->second == peer)
      by_id_.erase(found);
  }
}

void PeerTable::count(AgentTables& tables) const {
  MutexLock lock(mutex_);
  for (const auto& [incarnation, entry] : by_incarnation_) {
    tables.numbered_links += entry.peer->departures().open.size();
  }
  tables.known_workers = by_incarnation_.size();
  tables.gone_workers += gone_.size();
}

void PeerTable::clear_links() {
  MutexLock lock(mutex_);
  for (const auto& [incarnation, entry] : by_incarnation_) entry.peer->clear();
}

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
                                           : options.transfers,
              options.executor},
      monitor_(shared_, *this, options.heartbeat, options.after_reading, options.reader_state) {}

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
  // Other threads that want this peer wait for this connection instead of making another. They may drive the
  // loop, so this thread is on duty, too: it does not wait for the reader of a log line, for example.
  MutexLock connecting(peer->connecting);
  const DutyScope duty;
  GRADWIRE_ASSIGN_OR_RETURN(open, open_link(*peer));
  if (open != nullptr) return open;
  absl::Status last;
  const std::vector<Route> routes = routes_to(*peer);
  // Try the routes in order. A transport that fails is given up only if another one is left.
  for (std::size_t i = 0; i < routes.size(); ++i) {
    absl::StatusOr<std::shared_ptr<Link>> link = connect(routes[i], peer);
    if (link.ok()) return link;
    last = link.status();
    // A local shortage says nothing about the transport.
    if (i + 1 < routes.size() && !is_local_shortage(last)) peer->give_up(routes[i].transport->name(), last);
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
//   4. Report what follows from the end: messages that it has settled, the loss of a worker that has left,
//      and messages that may be lost while another connection is open. Without another connection, on_open()
//      reports that when the next one is admitted.
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
  if (ended.lost) report_loss(peer, /*at_once=*/false);
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
  // This worker has no descriptor or memory left. That says nothing about the peer, or about the transport.
  if (is_local_shortage(reason)) return monitor_.notice(*peer, &FailureDetector::postponed, reason);
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
  monitor_.notice(*peer,
                  nobody_listens                     ? &FailureDetector::refused
                  : transport::is_unresolved(reason) ? &FailureDetector::unresolved
                                                     : &FailureDetector::unreachable,
                  reason);
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
  if (link.ok()) return;
  monitor_.notice(
      *peer, is_local_shortage(link.status()) ? &FailureDetector::postponed : &FailureDetector::unreachable,
      link.status());
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
  if (report_loss(peer, /*at_once=*/false) || state == WorkerState::kDead) return;
  shared_.timers.schedule(shared_.timers.clock().now() + kLastMessages, [this, peer] {
    report_loss(peer, /*at_once=*/true);
    if (shared_.stopping) return;
    const absl::Status late = absl::DeadlineExceededError(
        absl::StrCat("worker \"", peer->worker.name, "\" has left, and has not ended the connection"));
    for (const std::shared_ptr<Link>& link : peer->view().links)
      link->part(goodbye(late), late, absl::ZeroDuration());
  });
}

bool Peers::report_loss(const std::shared_ptr<Peer>& peer, bool at_once) {
  const std::optional<Peer::Loss> loss = peer->take_loss(at_once);
  if (loss.has_value() && !shared_.stopping) {
    shared_.sink.on_worker_lost(peer->worker, loss->state, loss->reason);
  }
  return loss.has_value();
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
