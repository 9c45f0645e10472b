#include "gradwire/transport/event_loop.h"

#include <array>
#include <optional>

#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/send_batch.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
// An id that is no handler's.
constexpr uint64_t kSignalId = 0;
// While only memory is busy, descriptors are looked at in every so many rounds: that costs a system call.
constexpr uint32_t kRoundsBetweenDescriptors = 64;
// For how many rounds descriptors are looked at each time after they have brought something.
constexpr int kBusyRounds = 512;
// Looks again before leave() leaves the rest to the sleeping thread.
constexpr int kLeavingRounds = 4;

// What the tasks send that this thread runs until it drives again.
thread_local std::optional<SendBatch> batch_of_tasks;

}  // namespace

absl::StatusOr<std::shared_ptr<EventLoop>> EventLoop::create() {
  GRADWIRE_ASSIGN_OR_RETURN(Epoll events, Epoll::create());
  GRADWIRE_ASSIGN_OR_RETURN(Epoll sleep, Epoll::create());
  std::shared_ptr<EventLoop> loop(new EventLoop(std::move(events), std::move(sleep)));
  GRADWIRE_RETURN_IF_ERROR(loop->events_.add(loop->posted_signal_.fd(), EPOLLIN, kSignalId));
  GRADWIRE_RETURN_IF_ERROR(loop->sleep_.start());
  return loop;
}

EventLoop::EventLoop(Epoll events, Epoll sleep)
    : scratch_(kScratchBytes), events_(std::move(events)), sleep_(std::move(sleep), events_.fd(), driven_) {}

bool EventLoop::post(Task task) {
  {
    MutexLock lock(mutex_);
    if (ended()) return false;
    posted_.push_back(std::move(task));
    has_posted_.store(true);
  }
  // Pairs with the fence in leave: either the driver sees the task before it leaves, or this sees that it
  // left.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!attended_.load()) posted_signal_.give();
  return true;
}

void EventLoop::run_until(const std::function<bool()>& done) {
  while (!done()) {
    bool any = false;
    if (try_enter()) {
      any = poll();
      leave();
    }
    if (any || done()) continue;
    // Somebody else drives, or nothing is due: this is for the ends of things, which may take a moment.
    absl::SleepFor(absl::Microseconds(200));
  }
}

absl::StatusOr<uint64_t> EventLoop::add_in_loop(int fd, std::shared_ptr<EventHandler> handler,
                                                bool both_ways) {
  const uint64_t id = next_id_++;
  const uint32_t writable = both_ways ? uint32_t{EPOLLOUT} : 0;
  GRADWIRE_RETURN_IF_ERROR(events_.add(fd, EPOLLIN | EPOLLRDHUP | EPOLLET | writable, id));
  handlers_.emplace(id, std::move(handler));
  return id;
}

void EventLoop::remove_in_loop(int fd, uint64_t id) {
  events_.remove(fd);
  handlers_.erase(id);
}

bool EventLoop::try_enter() {
  batch_of_tasks.reset();
  if (driven_.load(std::memory_order_relaxed) || driven_.exchange(true, std::memory_order_acquire))
    return false;
  attended_.store(true);
  // Descriptors bring news now that this thread will find: nobody needs to be woken for them.
  if (busy_descriptors_ > 0) sleep_.ignore_descriptors();
  memory_.disarm_in_loop();
  return true;
}

bool EventLoop::poll() {
  ++rounds_;
  bool any = false;
  if (has_posted_.load(std::memory_order_relaxed)) any = run_posted_in_loop();
  if (memory_.poll_in_loop()) any = true;
  if (busy_descriptors_ > 0 || memory_.empty() || rounds_ % kRoundsBetweenDescriptors == 0 ||
      sleep_.descriptors_due()) {
    sleep_.look_at_descriptors();
    if (poll_descriptors_in_loop()) any = true;
    if (!timers_.empty()) {
      const absl::Time now = Clock::system().now();
      while (Task task = timers_.take_due(now)) {
        task();
        any = true;
      }
    }
  }
  if (ending_) finish_in_loop();
  return any;
}

bool EventLoop::run_posted_in_loop() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(posted_);
    has_posted_.store(false);
  }
  for (Task& task : tasks) task();
  return !tasks.empty();
}

bool EventLoop::poll_descriptors_in_loop() {
  if (busy_descriptors_ > 0) --busy_descriptors_;
  std::array<epoll_event, 64> room;
  bool any = false;
  for (const epoll_event& event : events_.wait(absl::MakeSpan(room), 0)) {
    // Copied: the system's struct is packed.
    const uint64_t id = event.data.u64;
    if (id == kSignalId) {
      posted_signal_.take();
      any = run_posted_in_loop() || any;
      continue;
    }
    auto found = handlers_.find(id);
    if (found == handlers_.end()) continue;
    any = true;
    std::shared_ptr<EventHandler> handler = found->second;
    if (handler->brings_more()) busy_descriptors_ = kBusyRounds;
    handler->on_events_in_loop(event.events);
  }
  return any;
}

void EventLoop::leave() {
  // What comes while it is being armed is looked at once more.
  bool news = true;
  for (int round = 0; news && round <= kLeavingRounds; ++round) {
    if (round > 0) {
      attended_.store(true);
      memory_.disarm_in_loop();
      poll();
    }
    memory_.arm_in_loop();
    attended_.store(false);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    news = has_posted_.load() || memory_.has_data_in_loop();
  }
  memory_.cool_in_loop();
  // What is left, or is due before the sleeping thread would look, is its business.
  if (sleep_.leave(timers_.next()) || news) wake();
}

void EventLoop::pause(bool several) {
  driven_.store(false, std::memory_order_release);
  if (several) batch_of_tasks.emplace();
}

void EventLoop::flush() { batch_of_tasks.reset(); }

void EventLoop::finish_in_loop() {
  {
    MutexLock lock(mutex_);
    if (!posted_.empty()) return;
    ended_.store(true, std::memory_order_release);
  }
  handlers_.clear();
  memory_.clear();
  timers_ = {};
  ending_ = false;
  wake();
}

}  // namespace gradwire::transport
