#include "gradwire/transport/event_loop.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/send_batch.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
// The id of posted_signal_, which handlers do not use.
constexpr uint64_t kSignalId = 0;
// While only memory has data, descriptors are polled once in this number of rounds, because that costs a
// system call.
constexpr uint32_t kRoundsBetweenDescriptors = 64;
// The same while memory has had no data for as many rounds.
constexpr uint32_t kRoundsWhenQuiet = 8;
// Number of rounds in which descriptors are polled after they had an event.
constexpr int kBusyRounds = 512;
// Maximum number of additional polls in leave() before the sleeping thread must take over.
constexpr int kMaxLeavingRounds = 4;

// Identifies a connection by one of its objects.
Poller::Found identity_of(const void* object) { return reinterpret_cast<Poller::Found>(object); }

// The batch of the messages that this thread's tasks send until the thread drives again.
thread_local std::optional<SendBatch> batch_of_tasks;

}  // namespace

absl::StatusOr<std::shared_ptr<EventLoop>> EventLoop::create(const Clock& clock) {
  GRADWIRE_ASSIGN_OR_RETURN(Epoll events, Epoll::create());
  GRADWIRE_ASSIGN_OR_RETURN(Epoll sleep, Epoll::create());
  std::shared_ptr<EventLoop> loop(new EventLoop(std::move(events), std::move(sleep), clock));
  GRADWIRE_RETURN_IF_ERROR(loop->events_.add(loop->posted_signal_.fd(), EPOLLIN, kSignalId));
  GRADWIRE_RETURN_IF_ERROR(loop->sleep_.start());
  return loop;
}

EventLoop::EventLoop(Epoll events, Epoll sleep, const Clock& clock)
    : turns_(clock),
      scratch_(kScratchBytes),
      events_(std::move(events)),
      sleep_(std::move(sleep), events_.fd(), driven_) {}

bool EventLoop::post(Task task) {
  {
    MutexLock lock(mutex_);
    if (ended()) return false;
    posted_.push_back(std::move(task));
    has_posted_.store(true);
  }
  // Pairs with the fence in leave(): either the driver sees the task before it leaves, or this thread sees
  // that it has left and rings.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!will_be_polled_.load()) posted_signal_.raise();
  return true;
}

void EventLoop::run_until(const std::function<bool()>& done) {
  while (!done()) {
    bool any = false;
    if (try_enter()) {
      any = poll() != kNothing;
      leave();
    }
    if (any || done()) continue;
    // Another thread drives, or nothing is due. This method is used only at shutdown, so a short sleep is
    // acceptable.
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

// Taking over the loop:
// 1. Send the messages that this thread's tasks have deferred: they must not wait until the thread leaves
//    again.
// 2. Become the driver. The exchange acquires what the previous driver wrote before it released driven_.
//    The plain load before it avoids fetching the cache line exclusively while another thread drives.
// 3. Ask writers not to ring: this thread polls from now on. A doorbell that is already on its way does no
// harm.
bool EventLoop::try_enter() {
  batch_of_tasks.reset();
  if (driven_.load(std::memory_order_relaxed) || driven_.exchange(true, std::memory_order_acquire))
    return false;
  will_be_polled_.store(true);
  // This thread polls the descriptors now, so their events need not wake another thread.
  if (descriptor_rounds_ > 0) sleep_.ignore_descriptors();
  memory_.disarm_in_loop();
  return true;
}

// Memory is polled in each round, because that is cheap. Descriptors and timers are polled in each round only
// if descriptors were busy recently or no memory is polled, since that costs a system call. If a doorbell has
// woken the thread, its message is usually found in memory: handle the message first, and read the doorbell
// in the next round. Deferred work comes last, so that it does not delay what has arrived. While there is
// some, each round polls the descriptors.
Poller::Found EventLoop::poll() {
  ++rounds_;
  turns_.begin_round();
  Found found = kNothing;
  if (has_posted_.load(std::memory_order_relaxed) && run_posted_in_loop()) found = kWork;
  if (const Pollable* const pollable = memory_.poll_in_loop()) {
    found = identity_of(pollable);
    data_round_ = rounds_;
  }
  const bool quiet = rounds_ - data_round_ > kRoundsBetweenDescriptors;
  if (descriptor_rounds_ > 0 || memory_.empty() || turns_.waiting() ||
      rounds_ % (quiet ? kRoundsWhenQuiet : kRoundsBetweenDescriptors) == 0 ||
      (sleep_.descriptors_due() && found == kNothing)) {
    sleep_.clear_descriptors_due();
    found = std::max(found, poll_descriptors_in_loop());
    if (!timers_.empty() && run_due_in_loop(Clock::system().now(), turns_)) found = std::max(found, kWork);
  }
  if (turns_.waiting() && turns_.run_deferred()) found = std::max(found, kWork);
  if (ending_) finish_in_loop();
  return found;
}

bool EventLoop::run_posted_in_loop() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    // Reset with the lock held: post() stores both together, so no task is left behind an unset flag.
    tasks.swap(posted_);
    has_posted_.store(false);
  }
  for (Task& task : tasks) task();
  return !tasks.empty();
}

Poller::Found EventLoop::poll_descriptors_in_loop() {
  if (descriptor_rounds_ > 0) --descriptor_rounds_;
  std::array<epoll_event, 64> room;
  Found found = kNothing;
  for (const epoll_event& event : events_.wait(absl::MakeSpan(room), 0)) {
    // Copied, because the system's struct is packed.
    const uint64_t id = event.data.u64;
    if (id == kSignalId) {
      posted_signal_.clear();
      if (run_posted_in_loop()) found = std::max(found, kWork);
      continue;
    }
    // A handler that ran before in this batch may have removed this one. Ids are not used again, so an
    // event of a closed descriptor cannot reach the handler of a new one with the same number.
    auto registered = handlers_.find(id);
    if (registered == handlers_.end()) continue;
    // Keep it: the handler may remove itself.
    std::shared_ptr<EventHandler> handler = registered->second;
    if (handler->expects_more_events()) descriptor_rounds_ = kBusyRounds;
    const Pollable* const pollable = handler->pollable();
    found = pollable != nullptr ? identity_of(pollable) : identity_of(handler.get());
    handler->on_events_in_loop(event.events);
  }
  return found;
}

void EventLoop::leave() {
  // Data may arrive while the memory is being armed, and then its writer does not ring. So:
  // 1. Arm the memory and clear will_be_polled_: from now on writers and post() ring.
  // 2. Check for data and tasks that arrived before that.
  // 3. If there are any, disarm and poll again, a few times at most. Then leave the rest to the sleeping
  //    thread.
  bool pending = true;
  for (int round = 0; pending && round <= kMaxLeavingRounds; ++round) {
    if (round > 0) {
      will_be_polled_.store(true);
      memory_.disarm_in_loop();
      poll();
    }
    memory_.arm_in_loop();
    will_be_polled_.store(false);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    pending = has_posted_.load() || memory_.has_data_in_loop();
  }
  memory_.deactivate_idle_in_loop();
  // This thread has an aim of its own, so deferred work is left to the sleeping thread, too.
  pending = pending || turns_.waiting();
  // Wake the sleeping thread if data is left, or if a timer is due before it would wake.
  // sleep_.leave() comes last: it clears driven_, so that another thread may drive from then on.
  if (sleep_.leave(timers_.next()) || pending) wake();
}

// Unlike leave(), this arms nothing, and will_be_polled_ stays set: no writer rings. The caller promises
// that some thread soon polls.
void EventLoop::pause(bool several) {
  driven_.store(false, std::memory_order_release);
  if (several) batch_of_tasks.emplace();
}

void EventLoop::flush() { batch_of_tasks.reset(); }

void EventLoop::finish_in_loop() {
  {
    MutexLock lock(mutex_);
    // Run all posted tasks before the end. After `ended_` is set, post() refuses tasks.
    // Called after each poll until it succeeds.
    if (!posted_.empty()) return;
    ended_.store(true, std::memory_order_release);
  }
  // Only the driver reaches these, so no lock is needed. They may own the last references to objects of
  // users.
  handlers_.clear();
  memory_.clear();
  timers_ = {};
  turns_.clear();
  ending_ = false;
  wake();
}

void end(EventLoop& loop) {
  loop.post([&loop] { loop.end_in_loop(); });
  loop.run_until([&loop] { return loop.ended(); });
}

}  // namespace gradwire::transport
