#include "gradwire/rpc/order/stream_order.h"

#include <algorithm>
#include <utility>

namespace gradwire::rpc {
namespace {

// From this number of fences on, add() drops those that devices have reached.
constexpr std::size_t kSweepAt = 16;

}  // namespace

void StreamOrder::begin(Work& work) {
  {
    MutexLock lock(mutex_);
    work.waited_for = ended_;
  }
  for (const StreamFencePtr& fence : work.waited_for) (void)fence->wait();
}

void StreamOrder::end(const Work& work) {
  StreamFencePtr fence = record_stream_fence();
  MutexLock lock(mutex_);
  // The new fence comes after those that this work has waited for. Those of work that ran at the same time
  // stay.
  std::erase_if(ended_, [&](const StreamFencePtr& ended) {
    return std::find(work.waited_for.begin(), work.waited_for.end(), ended) != work.waited_for.end();
  });
  if (fence != nullptr) ended_.push_back(std::move(fence));
}

void StreamOrder::add() {
  StreamFencePtr fence = record_stream_fence();
  if (fence == nullptr) return;
  MutexLock lock(mutex_);
  if (ended_.size() >= kSweepAt) {
    std::erase_if(ended_, [](const StreamFencePtr& ended) { return ended->reached().value_or(false); });
  }
  ended_.push_back(std::move(fence));
}

void StreamOrder::wait() const {
  if (const StreamFencePtr all = fence()) (void)all->wait();
}

StreamFencePtr StreamOrder::fence() const {
  MutexLock lock(mutex_);
  return join_fences(ended_);
}

}  // namespace gradwire::rpc
