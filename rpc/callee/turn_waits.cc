#include "gradwire/rpc/callee/turn_waits.h"

#include <algorithm>
#include <utility>

#include "gradwire/rpc/callee/served_call.h"

// Locked pointers to calls are destroyed without the lock, because they may be the last ones.
namespace gradwire::rpc {
namespace {

CallIdentity identity_of(const ServedCall& call) {
  return {call.incoming().from.incarnation, call.incoming().request().call_id()};
}

}  // namespace

void TurnWaits::add(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand) {
  std::vector<std::shared_ptr<ServedCall>> kept;
  MutexLock lock(mutex_);
  entries_.push_back({call, strand});
  if (entries_.size() < sweep_at_) return;
  std::erase_if(entries_, [&](const Entry& entry) {
    std::shared_ptr<ServedCall> waiting = entry.call.lock();
    const bool left = waiting == nullptr || waiting->waits().turn.claimed();
    kept.push_back(std::move(waiting));
    return left;
  });
  sweep_at_ = std::max<std::size_t>(8, 2 * entries_.size());
}

std::vector<TurnWaits::Wait> TurnWaits::waits() const {
  std::vector<Entry> entries;
  {
    MutexLock lock(mutex_);
    entries = entries_;
  }
  std::vector<Wait> waits;
  for (const Entry& entry : entries) {
    const std::shared_ptr<ServedCall> waiting = entry.call.lock();
    const std::shared_ptr<Strand> strand = entry.strand.lock();
    if (waiting == nullptr || strand == nullptr || waiting->waits().turn.claimed()) continue;
    const auto holder = std::static_pointer_cast<const ServedCall>(strand->holder());
    if (holder == nullptr) continue;
    waits.push_back({identity_of(*waiting), {identity_of(*holder), holder->callee()}});
  }
  return waits;
}

}  // namespace gradwire::rpc
