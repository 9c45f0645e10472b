#include "gradwire/transport/event_loop.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <iterator>
#include <optional>

#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
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
// While the driver does not leave, memory that has become idle is found once in this number of rounds.
constexpr uint32_t kRoundsBetweenRetirements = 4'096;
// Number of rounds in which descriptors are polled after they had an event.
constexpr int kBusyRounds = 512;
// Number of posted tasks for which there is always memory.
constexpr std::size_t kTasksWithRoom = 64;
// Maximum number of additional polls in leave() before the sleeping thread must take over.
constexpr int kMaxLeavingRounds = 4;

// Identifies a connection by one of its objects.
Poller::Found identity_of(const void* object) { return reinterpret_cast<Poller::Found>(object); }

// The number of the calling thread, as the system's tools show it.
pid_t thread_id() {
  thread_local const pid_t id = ::gettid();
  return id;
}

// The batch of the messages that this thread's tasks send until the thread drives again.
thread_local std::optional<SendBatch> batch_of_tasks;

}  // namespace

absl::StatusOr<std::shared_ptr<EventLoop>> EventLoop::create(const Clock& clock) {
  GRADWIRE_ASSIGN_OR_RETURN(Epoll events, Epoll::create());
  GRADWIRE_ASSIGN_OR_RETURN(Epoll sleep, Epoll::create());
  std::shared_ptr<EventLoop> loop(new EventLoop(std::move(events), std::move(sleep), clock));
  GRADWIRE_RETURN_IF_ERROR(loop->posted_signal_.status());
  GRADWIRE_RETURN_IF_ERROR(loop->events_.add(loop->posted_signal_.fd(), EPOLLIN, kSignalId));
  GRADWIRE_RETURN_IF_ERROR(loop->sleep_.start());
  return loop;
}

EventLoop::EventLoop(Epoll events, Epoll sleep, const Clock& clock)
    : turns_(clock),
      scratch_(kScratchBytes),
      events_(std::move(events)),
      sleep_(std::move(sleep), events_.fd(), driven_) {
  MutexLock lock(mutex_);
  posted_.reserve(kTasksWithRoom);
  running_.reserve(kTasksWithRoom);
}

bool EventLoop::post(Task task) {
  if (!mark_.here()) return false;
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

bool EventLoop::post_after_reading(Task task) {
  return post([this, task = std::move(task)]() mutable { after_reading_.push_back(std::move(task)); });
}

void EventLoop::run_until(const std::function<bool()>& done) {
  assert(!on_duty());
  while (mark_.here() && !done()) {
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
bool EventLoop::try_enter() noexcept {
  batch_of_tasks.reset();
  if (driven_.load(std::memory_order_relaxed) || driven_.exchange(true, std::memory_order_acquire))
    return false;
  begin_duty();
  set_duty_note(&doing_);
  driver_.store(thread_id(), std::memory_order_relaxed);
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
Poller::Found EventLoop::poll() noexcept {
  ++rounds_;
  turns_.begin_round();
  Found found = kNothing;
  if (has_posted_.load(std::memory_order_relaxed) && run_posted_in_loop()) found = kWork;
  // Tasks that are posted later in this round wait for the next one.
  const std::size_t after_reading = after_reading_.size();
  if (const Pollable* const pollable = memory_.poll_in_loop()) {
    found = identity_of(pollable);
    data_round_ = rounds_;
  }
  // A busy driver pauses between tasks and may never leave.
  if (rounds_ % kRoundsBetweenRetirements == 0) memory_.retire_idle_in_loop();
  const bool quiet = rounds_ - data_round_ > kRoundsBetweenDescriptors;
  if (descriptor_rounds_ > 0 || memory_.empty() || turns_.waiting() || after_reading > 0 ||
      rounds_ % (quiet ? kRoundsWhenQuiet : kRoundsBetweenDescriptors) == 0 ||
      (sleep_.descriptors_due() && found == kNothing)) {
    sleep_.clear_descriptors_due();
    found = std::max(found, poll_descriptors_in_loop());
    if (!timers_.empty()) note_duty("a timer");
    if (!timers_.empty() && run_due_in_loop(Clock::system().now(), turns_)) found = std::max(found, kWork);
  }
  if (turns_.waiting()) note_duty("a connection");
  if (turns_.waiting() && turns_.run_deferred()) found = std::max(found, kWork);
  if (after_reading > 0) {
    run_after_reading_in_loop(after_reading);
    found = std::max(found, kWork);
  }
  if (ending_) finish_in_loop();
  return found;
}

EventLoop::Driver EventLoop::driver() const {
  if (!driven_.load(std::memory_order_relaxed)) return {};
  return {driver_.load(std::memory_order_relaxed), doing_.load(std::memory_order_relaxed)};
}

bool EventLoop::run_posted_in_loop() {
  {
    MutexLock lock(mutex_);
    // Reset with the lock held: post() stores both together, so no task is left behind an unset flag.
    running_.swap(posted_);
    has_posted_.store(false);
  }
  note_duty("a task that another thread has posted");
  for (Task& task : running_) run_contained("a task of the event loop", task);
  const bool any = !running_.empty();
  running_.clear();
  return any;
}

// These tasks were posted before this round polled the memory and the descriptors. A connection whose turn is
// over (Turns) is left for later rounds, but something of it has been read.
void EventLoop::run_after_reading_in_loop(std::size_t count) {
  if (descriptors_left_) return;
  const auto end = after_reading_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<Task> tasks;
  // Without memory a later round tries again.
  if (!run_contained("tasks after reading", [&] { tasks.reserve(count); })) return;
  tasks.assign(std::make_move_iterator(after_reading_.begin()), std::make_move_iterator(end));
  after_reading_.erase(after_reading_.begin(), end);
  note_duty("a task that another thread has posted");
  for (Task& task : tasks) run_contained("a task of the event loop", task);
}

Poller::Found EventLoop::poll_descriptors_in_loop() {
  if (descriptor_rounds_ > 0) --descriptor_rounds_;
  std::array<epoll_event, 64> room;
  Found found = kNothing;
  const absl::Span<const epoll_event> events = events_.wait(absl::MakeSpan(room), 0);
  descriptors_left_ = events.size() == room.size();
  for (const epoll_event& event : events) {
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
    handle_in_loop(*handler, event.events);
  }
  return found;
}

void EventLoop::handle_in_loop(EventHandler& handler, uint32_t events) noexcept {
  note_duty("a connection");
  run_in_loop(handler, [&] { handler.on_events_in_loop(events); });
}

void EventLoop::run_in_loop(EventHandler& handler, absl::FunctionRef<void()> step) noexcept {
  try {
    step();
  } catch (...) {
    handler.failed_in_loop(caught("handling what has arrived"));
  }
}

void EventLoop::leave() noexcept {
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
  pending = pending || turns_.waiting() || !after_reading_.empty();
  // Wake the sleeping thread if data is left, or if a timer is due before it would wake.
  // sleep_.leave() comes last: it clears driven_, so that another thread may drive from then on.
  set_duty_note(nullptr);
  if (sleep_.leave(timers_.next()) || pending) wake();
  end_duty();
}

// Unlike leave(), this arms nothing, and will_be_polled_ stays set: no writer rings. The caller promises
// that some thread soon polls.
void EventLoop::pause(bool several) noexcept {
  set_duty_note(nullptr);
  end_duty();
  driven_.store(false, std::memory_order_release);
  if (several) batch_of_tasks.emplace();
}

void EventLoop::flush() noexcept { batch_of_tasks.reset(); }

void EventLoop::finish_in_loop() {
  {
    MutexLock lock(mutex_);
    // Run all posted tasks before the end. After `ended_` is set, post() refuses tasks.
    // Called after each poll until it succeeds.
    if (!posted_.empty()) return;
    ended_.store(true, std::memory_order_release);
  }
  // Only the driver reaches these, so no lock is needed. They may own the last references to objects of
  // users. Nobody waits for this thread any more.
  const OffDutyScope off_duty;
  handlers_.clear();
  memory_.clear();
  timers_ = {};
  turns_.clear();
  after_reading_.clear();
  ending_ = false;
  wake();
}

void end(EventLoop& loop) {
  loop.post([&loop] { loop.end_in_loop(); });
  loop.run_until([&loop] { return loop.ended(); });
}

}  // namespace gradwire::transport
