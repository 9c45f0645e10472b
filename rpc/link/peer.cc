#include "gradwire/rpc/link/peer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/link/link.h"

namespace gradwire::rpc {

WorkerState Peer::state() const {
  MutexLock lock(mutex_);
  return state_;
}

absl::Status Peer::status() const {
  MutexLock lock(mutex_);
  return lost_reason_;
}

absl::StatusOr<std::shared_ptr<Link>> Peer::link() const {
  MutexLock lock(mutex_);
  if (!lost_reason_.ok()) return lost_reason_;
  return link_;
}

std::vector<Peer::Connection>::iterator Peer::find_locked(const Link& link) {
  return std::find_if(connections_.begin(), connections_.end(),
                      [&](const Connection& connection) { return connection.link.get() == &link; });
}

bool Peer::reachable_locked() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const Connection& each) { return each.introduced; });
}

// After lose() no connection enters the list: lose() has returned all others to be closed, and nobody would
// close a later one.
absl::Status Peer::add(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  if (lost_reason_.ok()) connections_.push_back({.link = link, .made_here = true});
  return lost_reason_;
}

uint64_t Peer::number(const Link& link) {
  MutexLock lock(mutex_);
  ++last_number_;
  // If it is not found, the connection has closed meanwhile, and its Hello is lost.
  if (auto found = find_locked(link); found != connections_.end()) found->own_number = last_number_;
  return last_number_;
}

absl::Status Peer::greeted(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  const auto found = find_locked(*link);
  if (!lost_reason_.ok() || found == connections_.end()) return lost_reason_;
  found->greeted = true;
  // A connection with this worker itself has both of its ends here. Requests use the end that made it.
  if ((found->made_here || !is_self) &&
      Handshake::takes_over(found->introduced, link_ != nullptr, state_ == WorkerState::kSuspect)) {
    link_ = link;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Peer::admit(const std::shared_ptr<Link>& link, uint64_t number,
                                 std::shared_ptr<const Arrivals::Counter> read, bool reached) {
  MutexLock lock(mutex_);
  // Aborted lets the other side know that the loss is final.
  if (!lost_reason_.ok()) return absl::AbortedError(lost_reason_.message());
  auto found = find_locked(*link);
  if (found == connections_.end() && connections_.size() >= kMostConnections) {
    return absl::ResourceExhaustedError(absl::StrCat("worker \"", worker.name, "\" has ", connections_.size(),
                                                     " connections already, expected fewer than ",
                                                     kMostConnections, "; it must close some of them first"));
  }
  if (!arrivals_.open(number, std::move(read))) {
    return absl::UnavailableError(
        absl::StrCat("connection ", number, " of worker \"", worker.name,
                     "\" is stale: it has ended at that worker, or its number was used before"));
  }
  // A connection that was made here is in the list since add(). An accepted one enters it now.
  if (found == connections_.end()) found = connections_.insert(found, {.link = link});
  found->introduced = true;
  found->peer_number = number;
  if (reached) worked_.insert(link->transport());
  return std::exchange(broke_, false);
}

Peer::Ended Peer::remove(const std::shared_ptr<Link>& link) {
  Ended ended;
  // Declared before the lock, so that the link is released after it.
  Connection gone;
  MutexLock lock(mutex_);
  if (auto found = find_locked(*link); found != connections_.end()) {
    gone = std::move(*found);
    connections_.erase(found);
  }
  ended.introduced = gone.introduced;
  if (gone.introduced) {
    arrivals_.close(gone.peer_number);
    ended.settled = check_settled_locked();
  }
  // The receiver may never have seen the Hello of this connection. Only the next Departures let it know that
  // none will come.
  if (gone.own_number != 0) end_unreported_ = true;
  // New requests go to the oldest connection that is ready. If none is, link() returns nullptr, and the next
  // call connects.
  const auto best = std::find_if(connections_.begin(), connections_.end(),
                                 [](const Connection& each) { return each.introduced && each.greeted; });
  if (link_ == link) link_ = best == connections_.end() ? nullptr : best->link;
  ended.reachable = reachable_locked();
  // The side that made the connection may have sent messages behind its Hello. They are lost even if no
  // answer to the Hello came.
  broke_ = !ended.reachable;
  ended.lost = !lost_reason_.ok();
  return ended;
}

std::optional<Peer::Links> Peer::lose(WorkerState state, const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (!lost_reason_.ok()) return std::nullopt;
  state_ = state;
  lost_reason_ = reason;
  // The list stays: the caller closes the connections, and remove() follows for each.
  link_ = nullptr;
  Links links;
  for (const Connection& connection : connections_) links.push_back(connection.link);
  return links;
}

std::optional<Peer::Loss> Peer::take_loss(bool at_once) {
  MutexLock lock(mutex_);
  if (lost_reason_.ok() || loss_taken_) return std::nullopt;
  if (!at_once && state_ == WorkerState::kLeft && reachable_locked()) return std::nullopt;
  loss_taken_ = true;
  return Loss{state_, lost_reason_};
}

bool Peer::set_suspect(bool suspect) {
  const WorkerState state = suspect ? WorkerState::kSuspect : WorkerState::kAlive;
  MutexLock lock(mutex_);
  return lost_reason_.ok() && std::exchange(state_, state) != state;
}

Peer::View Peer::view() const {
  View view;
  MutexLock lock(mutex_);
  view.state = state_;
  view.lost_reason = lost_reason_;
  for (const Connection& connection : connections_) {
    // New requests may already wait for a link on which the peer has not introduced itself.
    if (!connection.introduced) continue;
    const bool in_use = connection.link == link_;
    view.link_in_use = view.link_in_use || in_use;
    view.links.insert(in_use ? view.links.begin() : view.links.end(), connection.link);
  }
  view.given_up.assign(given_up_.begin(), given_up_.end());
  return view;
}

void Peer::clear() {
  // The connections and their links are destroyed after the lock is released.
  std::vector<Connection> connections;
  std::shared_ptr<Link> link;
  MutexLock lock(mutex_);
  connections.swap(connections_);
  link.swap(link_);
}

Peer::Beat Peer::beat() {
  Beat beat;
  {
    MutexLock lock(mutex_);
    for (const Connection& connection : connections_) {
      if (connection.introduced && connection.greeted) beat.links.push_back(connection.link);
    }
    if (!beat.links.empty()) beat.forced = std::exchange(end_unreported_, false);
  }
  // Read last: a connection that ends in between forces the next heartbeat.
  beat.sent = departures();
  return beat;
}

Departures Peer::departures() const {
  MutexLock lock(mutex_);
  Departures sent{last_number_, {}};
  for (const Connection& connection : connections_) {
    if (connection.own_number != 0) sent.open.push_back({connection.own_number, connection.link->departed()});
  }
  return sent;
}

bool Peer::require(const Departures& sent) {
  MutexLock lock(mutex_);
  unsettled_ = true;
  // unsettled_ must be set before require() reads the counters (see Link::deliver()).
  const bool settled = arrivals_.require(sent);
  if (settled) unsettled_ = false;
  return settled;
}

bool Peer::update_arrivals(const Departures& sent) {
  MutexLock lock(mutex_);
  arrivals_.update(sent);
  return check_settled_locked();
}

bool Peer::check_settled() {
  if (!unsettled_.load()) return false;
  MutexLock lock(mutex_);
  return check_settled_locked();
}

bool Peer::check_settled_locked() {
  if (!unsettled_.load() || !arrivals_.settled()) return false;
  // Cleared under the lock, so that only one thread reports the event.
  unsettled_ = false;
  return true;
}

bool Peer::settled() {
  MutexLock lock(mutex_);
  return arrivals_.settled();
}

void Peer::give_up(const std::string& transport, const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (given_up_.emplace(transport, reason).second) unreported_.push_back(transport);
}

bool Peer::has_given_up(const std::string& transport) const {
  MutexLock lock(mutex_);
  return given_up_.contains(transport);
}

bool Peer::has_worked(const std::string& transport) const {
  MutexLock lock(mutex_);
  return worked_.contains(transport);
}

std::vector<std::pair<std::string, absl::Status>> Peer::take_given_up() {
  std::vector<std::pair<std::string, absl::Status>> given_up;
  MutexLock lock(mutex_);
  for (const std::string& transport : std::exchange(unreported_, {})) {
    given_up.emplace_back(transport, given_up_[transport]);
  }
  return given_up;
}

}  // namespace gradwire::rpc
