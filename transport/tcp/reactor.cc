#include "transport/tcp/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
constexpr uint64_t kWakeId = 0;

}  // namespace

Reactor::~Reactor() { join(); }

absl::Status Reactor::start() {
  MutexLock lock(mutex_);
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  Descriptor wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (!epoll.valid() || !wake.valid() || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot start the tcp transport's loop: ", std::strerror(errno)));
  }
  scratch_.resize(kScratchBytes);
  epoll_ = std::move(epoll);
  wake_ = std::move(wake);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("cannot start the tcp transport's thread: ", error.what()));
  }
  running_ = true;
  return absl::OkStatus();
}

void Reactor::join() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(thread_);
  }
  if (!thread.joinable()) return;
  thread.join();
  MutexLock lock(mutex_);
  wake_.reset();
  epoll_.reset();
}

bool Reactor::post(Task task) {
  MutexLock lock(mutex_);
  if (!running_) return false;
  posted_.push_back(std::move(task));
  if (posted_.size() == 1) {
    uint64_t one = 1;
    // Fails only when the counter is full, and then the loop is awake anyway.
    [[maybe_unused]] ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }
  return true;
}

absl::StatusOr<uint64_t> Reactor::add_in_loop(int fd, std::shared_ptr<EventHandler> handler) {
  uint64_t id = next_id_++;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot watch a descriptor: ", std::strerror(errno)));
  }
  handlers_.emplace(id, std::move(handler));
  return id;
}

void Reactor::remove_in_loop(int fd, uint64_t id) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(id);
}

uint64_t Reactor::schedule_in_loop(absl::Time when, Task task) {
  if (when == absl::InfiniteFuture()) return 0;
  uint64_t timer = next_timer_++;
  timers_.emplace(std::make_pair(when, timer), std::move(task));
  timer_times_.emplace(timer, when);
  return timer;
}

void Reactor::cancel_in_loop(uint64_t timer) {
  auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

void Reactor::run() {
  std::array<epoll_event, 64> events;
  // Read by this thread only, and closed after it has been joined.
  const int epoll = epoll_.get();
  do {
    int count = ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), wait_milliseconds());
    for (int i = 0; i < count; ++i) {
      // Copied: the system's struct is packed.
      const uint64_t id = events[i].data.u64;
      if (id == kWakeId) continue;
      auto found = handlers_.find(id);
      if (found == handlers_.end()) continue;
      std::shared_ptr<EventHandler> handler = found->second;
      handler->on_events_in_loop(events[i].events);
    }
    run_due_timers();
  } while (run_posted());
  handlers_.clear();
  timers_.clear();
  timer_times_.clear();
}

int Reactor::wait_milliseconds() {
  if (ending_) return 0;
  if (timers_.empty()) return -1;
  absl::Duration left = timers_.begin()->first.first - Clock::system().now();
  // Rounded up: a loop that wakes just before a timer is due would spin.
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 0, absl::ToInt64Milliseconds(absl::Hours(1))));
}

void Reactor::run_due_timers() {
  while (!timers_.empty() && timers_.begin()->first.first <= Clock::system().now()) {
    auto first = timers_.begin();
    Task task = std::move(first->second);
    timer_times_.erase(first->first.second);
    timers_.erase(first);
    task();
  }
}

bool Reactor::run_posted() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    if (posted_.empty()) {
      if (ending_) running_ = false;
      return !ending_;
    }
    tasks.swap(posted_);
    uint64_t count;
    [[maybe_unused]] ssize_t read = ::read(wake_.get(), &count, sizeof(count));
  }
  for (Task& task : tasks) task();
  return true;
}

}  // namespace gradwire::transport
