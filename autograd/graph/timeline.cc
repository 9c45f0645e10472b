#include "gradwire/autograd/graph/timeline.h"

#include <algorithm>
#include <utility>

namespace gradwire::autograd {
namespace {

// Returns the thread with this id, or the position at which to insert it. `threads` are sorted by id.
template <class Threads>
auto find_thread(Threads& threads, uint64_t id) {
  return std::lower_bound(threads.begin(), threads.end(), id,
                          [](const auto& thread, uint64_t wanted) { return thread.id < wanted; });
}

}  // namespace

std::shared_ptr<Timeline::Frame> Timeline::add_frame(Path path) {
  return std::make_shared<Frame>(std::move(path), frames_.fetch_add(1, std::memory_order_relaxed) + 1);
}

void Timeline::enter(const std::shared_ptr<Frame>& frame, uint64_t thread, uint64_t number) {
  MutexLock lock(mutex_);
  auto found = find_thread(threads_, thread);
  if (found == threads_.end() || found->id != thread) found = threads_.insert(found, Thread{thread, {}});
  absl::InlinedVector<Interval, 1>& intervals = found->intervals;
  // The thread continues its last interval if no other thread has worked for the frame in the meantime.
  if (!intervals.empty() && intervals.back().frame == frame &&
      intervals.back().interval == frame->last_interval_) {
    return;
  }
  frame->last_interval_ = frame->intervals_++;
  intervals.push_back({number, frame, frame->last_interval_});
}

void Timeline::leave_unused(const Frame& frame, uint64_t thread, uint64_t number) {
  // Destroyed after the lock is released.
  std::shared_ptr<Frame> dropped;
  MutexLock lock(mutex_);
  auto found = find_thread(threads_, thread);
  if (found == threads_.end() || found->id != thread || found->intervals.empty()) return;
  Interval& last = found->intervals.back();
  if (last.frame.get() != &frame || last.begin != number) return;
  // The interval has no node, so it can be removed. Its number in the frame is not reused, because another
  // thread may have begun the next interval meanwhile.
  dropped = std::move(last.frame);
  found->intervals.pop_back();
}

// Returns the last interval of the thread that began at or before `number`. Most nodes belong to the newest
// interval, so that one is tried before the binary search.
Timeline::Position Timeline::place(uint64_t thread, uint64_t number) const {
  MutexLock lock(mutex_);
  const auto found = find_thread(threads_, thread);
  if (found == threads_.end() || found->id != thread) return {nullptr, {thread, number}};
  const absl::InlinedVector<Interval, 1>& intervals = found->intervals;
  auto next = intervals.end();
  if (!intervals.empty() && intervals.back().begin > number) {
    next = std::upper_bound(intervals.begin(), intervals.end(), number,
                            [](uint64_t value, const Interval& interval) { return value < interval.begin; });
  }
  if (next == intervals.begin()) return {nullptr, {thread, number}};
  const Interval& interval = *--next;
  return {interval.frame.get(), {interval.interval, number - interval.begin}};
}

Timeline::Path Timeline::path_of_call(uint64_t thread, uint64_t number) const {
  const Position position = place(thread, number);
  if (position.frame == nullptr) return {position.moment};
  Path path = position.frame->path_;
  if (path.size() < kMaxDepth) path.push_back(position.moment);
  return path;
}

bool Timeline::older(const Position& a, const Position& b) {
  // The position of a node is its frame's path followed by its own moment; positions are compared like words
  // in a dictionary.
  if (a.frame == b.frame) return a.moment < b.moment;
  if (a.frame == nullptr || b.frame == nullptr) return a.frame == nullptr;
  const Path& a_path = a.frame->path_;
  const Path& b_path = b.frame->path_;
  for (std::size_t i = 0; i <= a_path.size() && i <= b_path.size(); ++i) {
    const Moment& in_a = i < a_path.size() ? a_path[i] : a.moment;
    const Moment& in_b = i < b_path.size() ? b_path[i] : b.moment;
    if (in_a != in_b) return in_a < in_b;
  }
  // One position begins with the other, so one node belongs to the call itself. The tensors of a call are
  // sent before the callee begins, so the caller's node is older.
  if (a_path.size() != b_path.size()) return a_path.size() < b_path.size();
  return a.frame->number_ < b.frame->number_;
}

std::size_t Timeline::intervals() const {
  MutexLock lock(mutex_);
  std::size_t count = 0;
  for (const Thread& thread : threads_) count += thread.intervals.size();
  return count;
}

}  // namespace gradwire::autograd
