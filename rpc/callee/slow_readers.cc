#include "gradwire/rpc/callee/slow_readers.h"

#include <utility>

namespace gradwire::rpc {

UnreadAnswers::Verdict SlowReaders::on_request(uint64_t caller, LinkSender& link) {
  if (none_waits(link)) return UnreadAnswers::Verdict::kServe;
  Kept kept;
  MutexLock lock(mutex_);
  return answers_.on_request(caller, unread_locked(caller, link, kept));
}

bool SlowReaders::may_run(uint64_t caller, LinkSender& link) {
  if (none_waits(link)) return true;
  Kept kept;
  MutexLock lock(mutex_);
  const uint64_t unread = unread_locked(caller, link, kept);
  if (!answers_.fits(unread)) return false;
  answers_.forget(caller);
  return true;
}

// 1. Enter this link, if answers wait on it. A link that has ended must not get an entry: forget() has come
//    before.
// 2. Ask all links of the caller. The peer may have read from the others without a request on them.
uint64_t SlowReaders::unread_locked(uint64_t caller, LinkSender& link, Kept& kept) {
  if (link.unread_bytes() > 0 && !link.closed())
    links_.try_emplace(link.number(), Entry{caller, link.weak_from_this()});
  uint64_t unread = 0;
  absl::erase_if(links_, [&](const auto& entry) {
    if (entry.second.caller != caller) return false;
    std::shared_ptr<LinkSender> other = entry.second.link.lock();
    const uint64_t waiting = other == nullptr ? 0 : other->unread_bytes();
    unread += waiting;
    kept.push_back(std::move(other));
    return waiting == 0;
  });
  size_.store(links_.size(), std::memory_order_relaxed);
  return unread;
}

void SlowReaders::forget(uint64_t link) {
  MutexLock lock(mutex_);
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  const uint64_t caller = found->second.caller;
  links_.erase(found);
  size_.store(links_.size(), std::memory_order_relaxed);
  for (const auto& [number, entry] : links_) {
    if (entry.caller == caller) return;
  }
  answers_.forget(caller);
}

std::size_t SlowReaders::links() const {
  Kept kept;
  MutexLock lock(mutex_);
  std::size_t links = 0;
  for (const auto& [number, entry] : links_) {
    kept.push_back(entry.link.lock());
    if (kept.back() != nullptr && kept.back()->unread_bytes() > 0) ++links;
  }
  return links;
}

}  // namespace gradwire::rpc
