#include "gradwire/autograd/graph/timeline.h"

#include <algorithm>
#include <utility>

namespace gradwire::autograd {
namespace {

// Where the thread with this id is, or would have to be inserted. `threads` are sorted by id.
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
  // The thread goes on where it stopped, and nobody has worked for the frame in the meantime.
  if (!stretches.empty() && stretches.back().frame == frame &&
      stretches.back().stretch == frame->last_stretch_) {
    return;
  }
  frame->last_stretch_ = frame->stretches_++;
  stretches.push_back({number, frame, frame->last_stretch_});
}

void Timeline::leave_unused(const Frame& frame, uint64_t thread, uint64_t number) {
  // Destroyed without the lock.
  std::shared_ptr<Frame> dropped;
  MutexLock lock(mutex_);
  auto found = find_thread(threads_, thread);
  if (found == threads_.end() || found->id != thread || found->stretches.empty()) return;
  Stretch& last = found->stretches.back();
  if (last.frame.get() != &frame || last.begin != number) return;
  dropped = std::move(last.frame);
  found->stretches.pop_back();
}

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
  const Place here = place(thread, number);
  if (here.frame == nullptr) return {here.moment};
  Path path = here.frame->path_;
  if (path.size() < kMaxDepth) path.push_back(here.moment);
  return path;
}

bool Timeline::older(const Place& a, const Place& b) {
  if (a.frame == b.frame) return a.moment < b.moment;
  if (a.frame == nullptr || b.frame == nullptr) return a.frame == nullptr;
  const Path& a_path = a.frame->path_;
  const Path& b_path = b.frame->path_;
  for (std::size_t i = 0; i <= a_path.size() && i <= b_path.size(); ++i) {
    const Moment& in_a = i < a_path.size() ? a_path[i] : a.moment;
    const Moment& in_b = i < b_path.size() ? b_path[i] : b.moment;
    if (in_a != in_b) return in_a < in_b;
  }
  // The tensors of a call leave before the callee begins.
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
