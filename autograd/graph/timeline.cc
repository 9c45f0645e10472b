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
  absl::InlinedVector<Stretch, 1>& stretches = found->stretches;
  // The thread continues its last stretch if no other thread has worked for the frame in the meantime.
  if (!stretches.empty() && stretches.back().frame == frame &&
      stretches.back().stretch == frame->last_stretch_) {
    return;
  }
  frame->last_stretch_ = frame->stretches_++;
  stretches.push_back({number, frame, frame->last_stretch_});
}

void Timeline::leave_unused(const Frame& frame, uint64_t thread, uint64_t number) {
  // Destroyed after the lock is released.
  std::shared_ptr<Frame> dropped;
  MutexLock lock(mutex_);
  auto found = find_thread(threads_, thread);
  if (found == threads_.end() || found->id != thread || found->stretches.empty()) return;
  Stretch& last = found->stretches.back();
  if (last.frame.get() != &frame || last.begin != number) return;
  // The stretch has no node, so it can be removed. Its number in the frame is not reused, because another
  // thread may have begun the next stretch meanwhile.
  dropped = std::move(last.frame);
  found->stretches.pop_back();
}

// Returns the last stretch of the thread that began at or before `number`. Most nodes belong to the newest
// stretch, so that one is tried before the binary search.
Timeline::Place Timeline::place(uint64_t thread, uint64_t number) const {
  MutexLock lock(mutex_);
  const auto found = find_thread(threads_, thread);
  if (found == threads_.end() || found->id != thread) return {nullptr, {thread, number}};
  const absl::InlinedVector<Stretch, 1>& stretches = found->stretches;
  auto next = stretches.end();
  if (!stretches.empty() && stretches.back().begin > number) {
    next = std::upper_bound(stretches.begin(), stretches.end(), number,
                            [](uint64_t value, const Stretch& stretch) { return value < stretch.begin; });
  }
  if (next == stretches.begin()) return {nullptr, {thread, number}};
  const Stretch& stretch = *--next;
  return {stretch.frame.get(), {stretch.stretch, number - stretch.begin}};
}

Timeline::Path Timeline::path_of_call(uint64_t thread, uint64_t number) const {
  const Place position = place(thread, number);
  if (position.frame == nullptr) return {position.moment};
  Path path = position.frame->path_;
  if (path.size() < kMaxDepth) path.push_back(position.moment);
  return path;
}

bool Timeline::older(const Place& a, const Place& b) {
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

std::size_t Timeline::stretches() const {
  MutexLock lock(mutex_);
  std::size_t count = 0;
  for (const Thread& thread : threads_) count += thread.stretches.size();
  return count;
}

}  // namespace gradwire::autograd
