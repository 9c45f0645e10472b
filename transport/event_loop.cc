#include "gradwire/transport/event_loop.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/send_batch.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
// Ids of events_ and sleep_ that are no handler's.
constexpr uint64_t kSignalId = 0;
constexpr uint64_t kDescriptorsId = 1;
// While only memory is busy, descriptors are looked at in every so many rounds: that costs a system call.
constexpr uint32_t kRoundsBetweenDescriptors = 64;
// For how many rounds descriptors are looked at each time after they have brought something.
constexpr int kBusyRounds = 512;
// Memory that brought nothing for so many rounds is left to its writer's ringing.
constexpr int kQuietRounds = 256;
// Looks again before leave() leaves the rest to the sleeping thread.
constexpr int kLeavingRounds = 4;

// What the tasks send that this thread runs until it drives again.
thread_local std::optional<SendBatch> batch_of_tasks;

void signal(const Descriptor& eventfd) {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the signal is there anyway.
  [[maybe_unused]] const ssize_t written = ::write(eventfd.get(), &one, sizeof(one));
}

void take_signal(const Descriptor& eventfd) {
  uint64_t count;
  [[maybe_unused]] const ssize_t read = ::read(eventfd.get(), &count, sizeof(count));
}

}  // namespace

absl::StatusOr<std::shared_ptr<EventLoop>> EventLoop::create() {
  GRADWIRE_ASSIGN_OR_RETURN(Epoll events, Epoll::create());
  GRADWIRE_ASSIGN_OR_RETURN(Epoll sleep, Epoll::create());
  std::shared_ptr<EventLoop> loop(new EventLoop(std::move(events), std::move(sleep)));
  GRADWIRE_RETURN_IF_ERROR(loop->events_.add(loop->posted_signal_.get(), EPOLLIN, kSignalId));
  GRADWIRE_RETURN_IF_ERROR(loop->sleep_.add(loop->wake_.get(), EPOLLIN, kSignalId));
  GRADWIRE_RETURN_IF_ERROR(loop->sleep_.add(loop->events_.fd(), EPOLLONESHOT, kDescriptorsId));
  return loop;
}

EventLoop::EventLoop(Epoll events, Epoll sleep)
    : scratch_(kScratchBytes),
      events_(std::move(events)),
      sleep_(std::move(sleep)),
      posted_signal_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

EventLoop::~EventLoop() = default;

bool EventLoop::post(Task task) {
  {
    MutexLock lock(mutex_);
    if (ended()) return false;
    posted_.push_back(std::move(task));
    has_posted_.store(true);
  }
  // Pairs with the fence in arm_in_loop: either the driver sees the task before it leaves, or this sees that it left.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!attended_.load()) signal(posted_signal_);
  return true;
}

void EventLoop::run_until(const std::function<bool()>& done) {
  Mutex mutex;
  CondVar never;
  while (!done()) {
    bool any = false;
    if (try_enter()) {
      any = poll();
      leave();
    }
    if (any || done()) continue;
    // Somebody else drives, or nothing is due: this is for the ends of things, which may take a moment.
    MutexLock lock(mutex);
    never.wait_for(mutex, absl::Microseconds(200));
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

void EventLoop::heat(const std::shared_ptr<Pollable>& pollable) {
  if (pollable->hot_.load(std::memory_order_relaxed) || pollable->hot_.exchange(true)) return;
  MutexLock lock(mutex_);
  heated_.push_back(pollable);
  has_heated_.store(true);
}

void EventLoop::adopt_heated_in_loop() {
  std::vector<std::shared_ptr<Pollable>> heated;
  {
    MutexLock lock(mutex_);
    heated.swap(heated_);
    has_heated_.store(false);
  }
  for (std::shared_ptr<Pollable>& pollable : heated) {
    pollable->quiet_rounds_ = 0;
    pollable->disarm_in_loop();
    hot_.push_back(std::move(pollable));
  }
}

void EventLoop::forget_in_loop(const Pollable& pollable) {
  if (has_heated_.load()) adopt_heated_in_loop();
  // The list may be being walked.
  for (std::shared_ptr<Pollable>& entry : hot_) {
    if (entry.get() == &pollable) entry = nullptr;
  }
}

uint64_t EventLoop::schedule_in_loop(absl::Time when, Task task) {
  if (when == absl::InfiniteFuture()) return 0;
  const uint64_t timer = next_timer_++;
  timers_.emplace(std::make_pair(when, timer), std::move(task));
  timer_times_.emplace(timer, when);
  return timer;
}

void EventLoop::cancel_in_loop(uint64_t timer) {
  auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

bool EventLoop::try_enter() {
  batch_of_tasks.reset();
  if (driven_.load(std::memory_order_relaxed) || driven_.exchange(true, std::memory_order_acquire))
    return false;
  attended_.store(true);
  // Descriptors bring news now that this thread will find: nobody needs to be woken for them.
  if (busy_descriptors_ > 0 && descriptors_wake_.load(std::memory_order_relaxed)) let_descriptors_wake(false);
  for (const std::shared_ptr<Pollable>& pollable : hot_) {
    if (pollable != nullptr) pollable->disarm_in_loop();
  }
  return true;
}

bool EventLoop::poll() {
  ++rounds_;
  bool any = false;
  if (has_posted_.load(std::memory_order_relaxed)) any = run_posted_in_loop();
  if (has_heated_.load(std::memory_order_relaxed)) adopt_heated_in_loop();
  if (!hot_.empty() && poll_memory_in_loop()) any = true;
  if (busy_descriptors_ > 0 || hot_.empty() || rounds_ % kRoundsBetweenDescriptors == 0 ||
      descriptors_due_.load(std::memory_order_relaxed)) {
    descriptors_due_.store(false);
    if (poll_descriptors_in_loop()) any = true;
    if (!timers_.empty() && run_timers_in_loop()) any = true;
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

bool EventLoop::poll_memory_in_loop() {
  bool any = false;
  bool holes = false;
  // By index: what is polled may add to the list, or make holes in it.
  for (std::size_t i = 0; i < hot_.size(); ++i) {
    Pollable* const pollable = hot_[i].get();
    if (pollable == nullptr) {
      holes = true;
      continue;
    }
    const std::shared_ptr<Pollable>* entry = &hot_[i];
    if (!pollable->has_news_in_loop()) {
      ++pollable->quiet_rounds_;
      continue;
    }
    // It may be forgotten by what it runs.
    const std::shared_ptr<Pollable> kept = *entry;
    kept->quiet_rounds_ = 0;
    if (kept->poll_in_loop()) any = true;
  }
  if (holes) std::erase(hot_, nullptr);
  return any;
}

bool EventLoop::poll_descriptors_in_loop() {
  if (busy_descriptors_ > 0) --busy_descriptors_;
  std::array<epoll_event, 64> room;
  bool any = false;
  for (const epoll_event& event : events_.wait(absl::MakeSpan(room), 0)) {
    // Copied: the system's struct is packed.
    const uint64_t id = event.data.u64;
    if (id == kSignalId) {
      take_signal(posted_signal_);
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

bool EventLoop::run_timers_in_loop() {
  bool any = false;
  const absl::Time now = Clock::system().now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto first = timers_.begin();
    Task task = std::move(first->second);
    timer_times_.erase(first->first.second);
    timers_.erase(first);
    task();
    any = true;
  }
  return any;
}

void EventLoop::leave() {
  bool news = true;
  for (int round = 0; round < kLeavingRounds && news; ++round) {
    news = !arm_in_loop();
    if (!news) break;
    attended_.store(true);
    for (const std::shared_ptr<Pollable>& pollable : hot_) {
      if (pollable != nullptr) pollable->disarm_in_loop();
    }
    poll();
  }
  if (news) arm_in_loop();
  std::erase_if(hot_, [](const std::shared_ptr<Pollable>& pollable) {
    if (pollable == nullptr) return true;
    if (pollable->quiet_rounds_ < kQuietRounds) return false;
    pollable->hot_.store(false);
    return true;
  });
  const int64_t next = timers_.empty() ? INT64_MAX : absl::ToUnixNanos(timers_.begin()->first.first);
  next_timer_nanos_.store(next);
  if (!descriptors_wake_.load()) let_descriptors_wake(true);
  driven_.store(false);
  if (turned_away_.exchange(false)) let_descriptors_wake(true);
  // What is left, or is due before the sleeping thread would look, is its business.
  if (news || next < sleeping_until_nanos_.load()) wake();
}

// Whether nothing came meanwhile.
bool EventLoop::arm_in_loop() {
  for (const std::shared_ptr<Pollable>& pollable : hot_) {
    if (pollable != nullptr) pollable->arm_in_loop();
  }
  attended_.store(false);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (has_posted_.load() || has_heated_.load()) return false;
  return std::none_of(hot_.begin(), hot_.end(), [](const std::shared_ptr<Pollable>& pollable) {
    return pollable != nullptr && pollable->has_news_in_loop();
  });
}

void EventLoop::pause(bool several) {
  driven_.store(false, std::memory_order_release);
  if (several) batch_of_tasks.emplace();
}

void EventLoop::flush() { batch_of_tasks.reset(); }

void EventLoop::let_descriptors_wake(bool yes) {
  MutexLock lock(wake_mutex_);
  sleep_.change(events_.fd(), EPOLLONESHOT | (yes ? uint32_t{EPOLLIN} : 0), kDescriptorsId);
  descriptors_wake_.store(yes);
}

void EventLoop::sleep() {
  const int64_t until = next_timer_nanos_.load();
  sleeping_until_nanos_.store(until);
  // A driver that leaves after this lets descriptors wake this thread again.
  turned_away_.store(true);
  if (!driven_.load()) {
    turned_away_.store(false);
    if (!descriptors_wake_.load() || next_timer_nanos_.load() != until || ended()) return;
  }
  int milliseconds = -1;
  if (until != INT64_MAX) {
    const int64_t left = until - absl::ToUnixNanos(Clock::system().now());
    // Rounded up: a thread that woke just before a timer is due would have to sleep again.
    milliseconds = static_cast<int>(std::clamp<int64_t>(left / 1'000'000 + 1, 0, 3'600'000));
  }
  std::array<epoll_event, 2> room;
  const absl::Span<const epoll_event> events = sleep_.wait(absl::MakeSpan(room), milliseconds);
  sleeping_until_nanos_.store(INT64_MIN);
  for (const epoll_event& event : events) {
    if (event.data.u64 == kSignalId) {
      take_signal(wake_);
    } else {
      // It was for once. Whoever leaves next sets it again.
      MutexLock lock(wake_mutex_);
      descriptors_wake_.store(false);
      descriptors_due_.store(true);
    }
  }
}

void EventLoop::wake() { signal(wake_); }

void EventLoop::finish_in_loop() {
  {
    MutexLock lock(mutex_);
    if (!posted_.empty()) return;
    ended_.store(true, std::memory_order_release);
  }
  handlers_.clear();
  hot_.clear();
  timers_.clear();
  timer_times_.clear();
  ending_ = false;
  wake();
}

}  // namespace gradwire::transport
