#include "gradwire/rpc/link/peer.h"

#include <algorithm>

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

absl::Status Peer::add(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  if (lost_reason_.ok()) connections_.push_back({.link = link, .made_here = true});
  return lost_reason_;
}

uint64_t Peer::number(const Link& link) {
  MutexLock lock(mutex_);
  ++last_number_;
  // Else it has closed meanwhile, and its Hello goes nowhere.
  if (auto found = find_locked(link); found != connections_.end()) found->departs_as = last_number_;
  return last_number_;
}

absl::Status Peer::greeted(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  const auto found = find_locked(*link);
  if (!lost_reason_.ok() || found == connections_.end()) return lost_reason_;
  found->greeted = true;
  // Calls to oneself leave at the end of the connection that was made for them.
  if ((found->made_here || !is_self) &&
      Handshake::takes_over(found->introduced, link_ != nullptr, state_ == WorkerState::kSuspect)) {
    link_ = link;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Peer::admit(const std::shared_ptr<Link>& link, uint64_t number,
                                 std::shared_ptr<const Arrivals::Counter> read, bool reached) {
  MutexLock lock(mutex_);
  if (!lost_reason_.ok()) return absl::AbortedError(lost_reason_.message());
  if (!arrivals_.open(number, std::move(read))) {
    return absl::UnavailableError(absl::StrCat("connection ", number, " of worker \"", worker.name,
                                               "\" has ended at its own end, or has come before"));
  }
  auto found = find_locked(*link);
  if (found == connections_.end()) found = connections_.insert(found, {.link = link});
  found->introduced = true;
  found->arrives_as = number;
  if (reached) worked_.insert(link->transport());
  return std::exchange(broke_, false);
}

Peer::Ended Peer::remove(const std::shared_ptr<Link>& link) {
  Ended ended;
  Connection gone;
  MutexLock lock(mutex_);
  if (auto found = find_locked(*link); found != connections_.end()) {
    gone = std::move(*found);
    connections_.erase(found);
  }
  ended.introduced = gone.introduced;
  if (gone.introduced) {
    arrivals_.close(gone.arrives_as);
    ended.settled = settles_locked();
  }
  if (gone.departs_as != 0) untold_ = true;
  const auto best = std::find_if(connections_.begin(), connections_.end(),
                                 [](const Connection& each) { return each.introduced && each.greeted; });
  if (link_ == link) link_ = best == connections_.end() ? nullptr : best->link;
  ended.reachable = std::any_of(connections_.begin(), connections_.end(),
                                [](const Connection& each) { return each.introduced; });
  // Whoever made the connection may have sent more behind its Hello: that is lost also when no answer came.
  broke_ = !ended.reachable;
  ended.lost = !lost_reason_.ok();
  return ended;
}

std::optional<Peer::Links> Peer::lose(WorkerState state, const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (!lost_reason_.ok()) return std::nullopt;
  state_ = state;
  lost_reason_ = reason;
  link_ = nullptr;
  Links links;
  for (const Connection& connection : connections_) links.push_back(connection.link);
  return links;
}

void Peer::set_suspect(bool suspect) {
  MutexLock lock(mutex_);
  if (lost_reason_.ok()) state_ = suspect ? WorkerState::kSuspect : WorkerState::kAlive;
}

bool Peer::is_connected() const {
  MutexLock lock(mutex_);
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const Connection& each) { return each.introduced; });
}

void Peer::clear() {
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
    if (!beat.links.empty()) beat.news = std::exchange(untold_, false);
  }
  // Last: a connection that ends meanwhile is news again.
  beat.sent = departures();
  return beat;
}

Departures Peer::departures() const {
  MutexLock lock(mutex_);
  Departures sent{last_number_, {}};
  for (const Connection& connection : connections_) {
    if (connection.departs_as != 0) sent.open.push_back({connection.departs_as, connection.link->departed()});
  }
  return sent;
}

bool Peer::require(const Departures& sent) {
  MutexLock lock(mutex_);
  unsettled_ = true;
  const bool settled = arrivals_.require(sent);
  if (settled) unsettled_ = false;
  return settled;
}

bool Peer::told(const Departures& sent) {
  MutexLock lock(mutex_);
  arrivals_.told(sent);
  return settles_locked();
}

bool Peer::settles() {
  if (!unsettled_.load()) return false;
  MutexLock lock(mutex_);
  return settles_locked();
}

bool Peer::settles_locked() {
  if (!unsettled_.load() || !arrivals_.settled()) return false;
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
