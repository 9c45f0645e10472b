#include "gradwire/rpc/link/peers.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/process/host.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/link/link.h"

namespace gradwire::rpc {

Peers::Peers(std::vector<std::unique_ptr<transport::Transport>> transports, Sink& sink, TimerQueue& timers,
             const Options& options)
    : transports_(std::move(transports)),
      sink_(sink),
      timers_(timers),
      options_(options),
      detector_(options.heartbeat) {}

Peers::~Peers() { shutdown(absl::CancelledError("the agent is gone"), absl::ZeroDuration()); }

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
                          absl::StrCat("worker \"", self.name, "\" cannot listen by ", transport->name()));
    }
    proto::Address* entry = record.add_addresses();
    entry->set_transport(transport->name());
    entry->set_address(*address);
    log(LogLevel::kDebug, "worker \"", self.name, "\" listens by ", transport->name(), " at ",
        absl::CHexEscape(*address));
  }
  return record;
}

void Peers::set_workers(const Worker& self, const std::vector<WorkerAddress>& workers,
                        const std::vector<Worker>& gone) {
  {
    MutexLock lock(mutex_);
    self_ = self;
    for (const WorkerAddress& worker : workers) add_worker_locked(worker);
    for (const Worker& worker : gone) gone_.insert(worker.incarnation);
    ready_ = true;
  }
  release_held();
}

void Peers::add_worker(const WorkerAddress& worker) {
  {
    MutexLock lock(mutex_);
    add_worker_locked(worker);
  }
  release_held();
}

void Peers::add_worker_locked(const WorkerAddress& address) {
  if (by_incarnation_.contains(address.worker.incarnation)) return;
  auto peer = std::make_shared<Peer>();
  peer->worker = address.worker;
  peer->record = address.record;
  std::shared_ptr<Peer>& by_id = peers_[address.worker.id];
  if (by_id != nullptr) by_id->superseded = true;
  by_id = peer;
  std::shared_ptr<Peer>& by_name = by_name_[address.worker.name];
  if (by_name != nullptr) by_name->superseded = true;
  by_name = peer;
  by_incarnation_[address.worker.incarnation] = std::move(peer);
}

std::vector<Worker> Peers::workers() const {
  std::vector<Worker> workers;
  MutexLock lock(mutex_);
  for (const auto& [id, peer] : peers_) workers.push_back(peer->worker);
  return workers;
}

std::vector<Worker> Peers::live_workers() const {
  std::vector<Worker> workers;
  MutexLock lock(mutex_);
  for (const auto& [id, peer] : peers_) {
    if (!peer->lost) workers.push_back(peer->worker);
  }
  return workers;
}

absl::StatusOr<std::shared_ptr<Peer>> Peers::find(const std::string& name, int32_t id) const {
  MutexLock lock(mutex_);
  if (name.empty()) {
    if (auto found = peers_.find(id); found != peers_.end()) return found->second;
  } else if (auto found = by_name_.find(name);
             found != by_name_.end() && (id < 0 || id == found->second->worker.id)) {
    return found->second;
  }
  std::vector<std::string> names;
  for (const auto& [peer_id, peer] : peers_) {
    names.push_back(absl::StrCat("\"", peer->worker.name, "\" (", peer_id, ")"));
  }
  return absl::NotFoundError(
      absl::StrCat("no worker ", name.empty() ? absl::StrCat("with id ", id) : absl::StrCat("\"", name, "\""),
                   " in the group; there are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::shared_ptr<Peer>> Peers::find(const Worker& worker) const {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(worker.incarnation);
  if (found == by_incarnation_.end()) {
    return absl::NotFoundError(absl::StrCat("worker \"", worker.name, "\" is no member of the group"));
  }
  if (found->second->superseded) {
    return absl::AbortedError(absl::StrCat("worker \"", worker.name, "\" came back as a new incarnation"));
  }
  return found->second;
}

absl::StatusOr<Worker> Peers::find_by_incarnation(uint64_t incarnation) const {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(incarnation);
  if (found != by_incarnation_.end()) return found->second->worker;
  return absl::NotFoundError(absl::StrCat("no worker of the group is incarnation ", absl::Hex(incarnation)));
}

absl::Status Peers::status(const Worker& worker) const {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, find(worker));
  MutexLock lock(mutex_);
  return peer->lost ? peer->lost_reason : absl::OkStatus();
}

WorkerState Peers::state(const Peer& peer) const {
  MutexLock lock(mutex_);
  if (peer.lost) return peer.left ? WorkerState::kLeft : WorkerState::kDead;
  return peer.suspect ? WorkerState::kSuspect : WorkerState::kAlive;
}

void Peers::count(AgentTables& tables) const {
  MutexLock lock(mutex_);
  tables.held_bytes = held_bytes_;
  tables.links = links_.size();
  tables.unadmitted_links = unadmitted_;
  for (const auto& [incarnation, peer] : by_incarnation_) tables.numbered_links += peer->numbered.size();
  tables.known_workers = by_incarnation_.size();
  tables.gone_workers += gone_.size();
  tables.watched_workers = detector_.watched();
}

void Peers::forget_lost_locked() {
  while (lost_.size() > GoneWorkers::kMax) {
    const auto oldest = by_incarnation_.find(lost_.front());
    lost_.pop_front();
    if (oldest == by_incarnation_.end()) continue;
    const std::shared_ptr<Peer> peer = oldest->second;
    by_incarnation_.erase(oldest);
    gone_.insert(peer->worker.incarnation);
    if (auto found = by_name_.find(peer->worker.name); found != by_name_.end() && found->second == peer)
      by_name_.erase(found);
    if (auto found = peers_.find(peer->worker.id); found != peers_.end() && found->second == peer)
      peers_.erase(found);
  }
}

absl::StatusOr<std::shared_ptr<Link>> Peers::open_link(const std::shared_ptr<Peer>& peer) const {
  MutexLock lock(mutex_);
  if (stopping_) return absl::FailedPreconditionError("the agent has been shut down");
  if (peer->lost) return peer->lost_reason;
  return peer->link;
}

absl::StatusOr<std::shared_ptr<Link>> Peers::link_to(const std::shared_ptr<Peer>& peer) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Link> open, open_link(peer));
  if (open != nullptr) return open;
  // Whoever comes meanwhile waits for this connection rather than make another.
  MutexLock connecting(peer->connecting);
  GRADWIRE_ASSIGN_OR_RETURN(open, open_link(peer));
  if (open != nullptr) return open;
  absl::Status last;
  std::vector<Way> ways = ways_to(*peer);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    absl::StatusOr<std::shared_ptr<Link>> link = connect(*ways[i].transport, *ways[i].address, peer);
    if (link.ok()) return link;
    last = link.status();
    if (i + 1 < ways.size()) give_up(*peer, ways[i].transport->name(), last);
  }
  if (!last.ok()) return with_context(last, absl::StrCat("connecting to worker \"", peer->worker.name, "\""));
  return absl::UnavailableError(absl::StrCat("no transport reaches worker \"", peer->worker.name,
                                             "\": allow one that both sides have"));
}

std::vector<Peers::Way> Peers::ways_to(const Peer& peer) const {
  std::vector<Way> ways;
  const bool to_self = peer.worker.incarnation == self_.incarnation;
  for (const auto& transport : transports_) {
    if ((transport->name() == "loopback") != to_self) continue;
    {
      MutexLock lock(mutex_);
      if (peer.given_up.contains(transport->name())) continue;
    }
    for (const proto::Address& address : peer.record.addresses()) {
      if (address.transport() == transport->name() && transport->may_reach(address.address())) {
        ways.push_back({transport.get(), &address.address()});
      }
    }
  }
  return ways;
}

void Peers::give_up(Peer& peer, const std::string& transport, const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (peer.given_up.emplace(transport, reason).second) peer.unreported.push_back(transport);
}

void Peers::report_given_up(Peer& peer) {
  std::vector<std::pair<std::string, absl::Status>> given_up;
  {
    MutexLock lock(mutex_);
    for (const std::string& transport : std::exchange(peer.unreported, {})) {
      given_up.emplace_back(transport, peer.given_up[transport]);
    }
  }
  for (const auto& [transport, reason] : given_up) {
    log(LogLevel::kWarning, "worker \"", self_.name, "\" does without the transport \"", transport,
        "\" to worker \"", peer.worker.name, "\": ", reason.message());
  }
}

absl::StatusOr<std::shared_ptr<Link>> Peers::connect(transport::Transport& transport,
                                                     const std::string& address,
                                                     const std::shared_ptr<Peer>& peer) {
  log(LogLevel::kDebug, "worker \"", self_.name, "\" connects to worker \"", peer->worker.name, "\" by ",
      transport.name(), " at ", absl::CHexEscape(address));
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mutex_);
    link = std::make_shared<Link>(*this, next_link_++, peer, transport.name());
  }
  // A host name may have to be looked up here, which takes its time: only those who want this peer wait.
  MutexLock opening(link->opening_);
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<transport::Connection> connection,
                            transport.connect(address, link, options_.connect_timeout));
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    link->connection_ = connection;
    links_[link->number()] = link;
    if (stopping_) refused = absl::FailedPreconditionError("the agent has been shut down");
    if (peer->lost) refused = peer->lost_reason;
  }
  if (!refused.ok()) {
    connection->close(refused);
    link->opened_ = true;
    return refused;
  }
  introduce(link, peer, peer->worker.incarnation);
  {
    MutexLock lock(mutex_);
    link->greeted_ = true;
    if (peer->lost) {
      refused = peer->lost_reason;
    } else if (peer->link == nullptr && links_.contains(link->number())) {
      // Else the peer's own connection has come in meanwhile; it is as good.
      peer->link = link;
    }
    // Last of all: its end, too, waits for this. Within the lock: lose() closes it, or was before this.
    link->opened_ = true;
  }
  if (!refused.ok()) {
    connection->close(refused);
    return refused;
  }
  if (peer->worker.incarnation != self_.incarnation)
    watch(*peer, &FailureDetector::attempted, absl::OkStatus());
  return link;
}

void Peers::introduce(const std::shared_ptr<Link>& link, const std::shared_ptr<Peer>& peer,
                      uint64_t to_incarnation) {
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = link->departs_as_ = ++peer->last_number;
    // Else it has closed meanwhile, and its Hello goes nowhere.
    if (links_.contains(link->number())) peer->numbered.push_back(link);
  }
  proto::Envelope envelope;
  proto::Hello& hello = *envelope.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_id(self_.id);
  hello.set_name(self_.name);
  hello.set_incarnation(self_.incarnation);
  hello.set_to_incarnation(to_incarnation);
  hello.set_connection(number);
  // A failure shows as on_closed.
  (void)link->connection_->send({envelope.SerializeAsString(), {}});
}

std::shared_ptr<transport::ConnectionListener> Peers::accept(
    const std::string& transport, const std::shared_ptr<transport::Connection>& connection) {
  MutexLock lock(mutex_);
  if (stopping_) return nullptr;
  if (unadmitted_ >= options_.limits.max_unadmitted) return nullptr;
  auto link = std::make_shared<Link>(*this, next_link_++, nullptr, transport);
  link->connection_ = connection;
  link->opened_ = true;
  links_[link->number()] = link;
  ++unadmitted_;
  link->hello_timer_ = timers_.schedule(
      timers_.clock().now() + Link::kHelloTimeout, [weak = std::weak_ptr<Link>(link), connection] {
        if (weak.lock() != nullptr) {
          connection->close(absl::DeadlineExceededError("the other side did not introduce itself"));
        }
      });
  return link;
}

void Peers::shutdown(const absl::Status& reason, absl::Duration flush) {
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      stopping_ = true;
      for (const auto& [number, link] : links_) links.push_back(link);
    }
  }
  const std::string header = goodbye(reason);
  for (const std::shared_ptr<Link>& link : links) {
    link->wait_until_opened();
    (void)link->connection_->send({header, {}});
    link->connection_->close(reason, flush);
  }
  // Each link goes out of the table when its connection has flushed; the transports cut what is left then.
  const absl::Time deadline = Clock::system().now() + flush;
  mutex_.lock();
  while (!links_.empty() && Clock::system().now() < deadline) {
    links_changed_.wait_for(mutex_, deadline - Clock::system().now());
  }
  mutex_.unlock();
  for (const auto& transport : transports_) transport->shutdown();
  MutexLock lock(mutex_);
  for (auto& [id, peer] : peers_) peer->link = nullptr;
  for (auto& [incarnation, peer] : by_incarnation_) peer->numbered.clear();
  for (const auto& [number, link] : links_) (void)drop_held_locked(*link);
  held_.clear();
  links_.clear();
  unadmitted_ = 0;
}

}  // namespace gradwire::rpc
