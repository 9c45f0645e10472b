#include "gradwire/rpc/link/arrivals.h"

#include <algorithm>
#include <limits>
#include <utility>

// Connection numbers rise, but their Hellos arrive in any order. What is known about a number depends on
// newest_, the highest number that the sender has reported:
//   - Above newest_, a number is in seen_ if its Hello has been read. All others may still come.
//   - Up to newest_, a number is in expected_ if its Hello may still come. All others have been read or are
//     refused.
// So the two sets stay small, although numbers are never reused.
namespace gradwire::rpc {
namespace {

// A number of messages that only the end of the connection settles.
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

}  // namespace

bool Arrivals::open(uint64_t connection, std::shared_ptr<const Counter> read) {
  if (connection == 0) return false;
  // A number is accepted once: above newest_ if its Hello has not been seen, and up to newest_ only if it is
  // still expected.
  const bool first = connection > newest_ ? seen_.insert(connection).second : expected_.erase(connection) > 0;
  if (!first) return false;
  open_.emplace(connection, std::move(read));
  return true;
}

void Arrivals::close(uint64_t connection) { open_.erase(connection); }

void Arrivals::update(const Departures& sent) {
  HashSet<uint64_t> listed;
  for (const Departures::Connection& connection : sent.open) listed.insert(connection.number);
  // A connection that the sender does not list any more has ended there: its Hello is refused from now on.
  absl::erase_if(expected_,
                 [&](uint64_t number) { return number <= sent.newest && !listed.contains(number); });
  // An older report that arrives late must not bring connections back.
  if (sent.newest <= newest_) return;
  for (uint64_t number : listed) {
    if (number > newest_ && number <= sent.newest && !seen_.contains(number)) expected_.insert(number);
  }
  newest_ = sent.newest;
  absl::erase_if(seen_, [this](uint64_t number) { return number <= newest_; });
}

bool Arrivals::require(const Departures& sent) {
  update(sent);
  HashSet<uint64_t> listed;
  for (const Departures::Connection& connection : sent.open) {
    listed.insert(connection.number);
    if (is_read(connection.number, connection.messages)) continue;
    uint64_t& due = due_[connection.number];
    due = std::max(due, connection.messages);
  }
  // A connection that is open here but not listed has ended at the sender: it is read to its end.
  for (const auto& [number, read] : open_) {
    if (number <= sent.newest && !listed.contains(number)) due_[number] = kAll;
  }
  return settled();
}

bool Arrivals::settled() {
  // Entries that are settled are removed, so later calls need not check them again.
  absl::erase_if(due_, [this](const auto& entry) { return is_read(entry.first, entry.second); });
  return due_.empty();
}

bool Arrivals::is_read(uint64_t connection, uint64_t messages) const {
  if (messages == 0) return true;
  if (auto found = open_.find(connection); found != open_.end()) {
    // Sequentially consistent, like the increment in Link::deliver() and the read of Peer::unsettled_ after
    // it: either this load sees the new count, or the reader sees that something is unsettled and asks again.
    return found->second->load() >= messages;
  }
  // The connection is not open here. Either it has been read to its end, or its Hello is refused, or it may
  // still come.
  return connection <= newest_ && !expected_.contains(connection);
}

}  // namespace gradwire::rpc
