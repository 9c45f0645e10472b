#include "gradwire/rpc/link/arrivals.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace gradwire::rpc {
namespace {

// Only the connection's end settles it.
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

}  // namespace

bool Arrivals::open(uint64_t connection, std::shared_ptr<const Counter> read) {
  if (connection == 0) return false;
  const bool first = connection > newest_ ? seen_.insert(connection).second : expected_.erase(connection) > 0;
  if (!first) return false;
  open_.emplace(connection, std::move(read));
  return true;
}

void Arrivals::close(uint64_t connection) { open_.erase(connection); }

void Arrivals::told(const Departures& sent) {
  absl::flat_hash_set<uint64_t> listed;
  for (const Departures::Connection& connection : sent.open) listed.insert(connection.number);
  absl::erase_if(expected_,
                 [&](uint64_t number) { return number <= sent.newest && !listed.contains(number); });
  if (sent.newest <= newest_) return;
  for (uint64_t number : listed) {
    if (number > newest_ && number <= sent.newest && !seen_.contains(number)) expected_.insert(number);
  }
  newest_ = sent.newest;
  absl::erase_if(seen_, [this](uint64_t number) { return number <= newest_; });
}

bool Arrivals::require(const Departures& sent) {
  told(sent);
  absl::flat_hash_set<uint64_t> listed;
  for (const Departures::Connection& connection : sent.open) {
    listed.insert(connection.number);
    if (is_read(connection.number, connection.messages)) continue;
    uint64_t& due = due_[connection.number];
    due = std::max(due, connection.messages);
  }
  // Ended at the sender, but not read to its end here.
  for (const auto& [number, read] : open_) {
    if (number <= sent.newest && !listed.contains(number)) due_[number] = kAll;
  }
  return settled();
}

bool Arrivals::settled() {
  absl::erase_if(due_, [this](const auto& entry) { return is_read(entry.first, entry.second); });
  return due_.empty();
}

bool Arrivals::is_read(uint64_t connection, uint64_t messages) const {
  if (messages == 0) return true;
  if (auto found = open_.find(connection); found != open_.end()) {
    // Sequentially consistent, as the reader's increment and its question whether anything is due.
    return found->second->load() >= messages;
  }
  return connection <= newest_ && !expected_.contains(connection);
}

}  // namespace gradwire::rpc
