#include "gradwire/base/threads/executor.h"

#include <cassert>
#include <memory>
#include <utility>

#include "gradwire/base/duty.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/execution_state.h"

namespace gradwire {
namespace {

thread_local Executor* current_executor = nullptr;
thread_local BlockingListener* blocking_listener = nullptr;
// Whether the calling thread is counted as waiting.
thread_local bool blocked = false;

std::atomic<ExecutorSource> executor_source{nullptr};

}  // namespace

bool Executor::post(Task& task) {
  struct InState {
    ExecutionState state;
    Task task;
  };
  // Made first, because it may throw.
  auto in_state = std::make_unique<InState>(InState{ExecutionState::capture(), nullptr});
  in_state->task = std::move(task);
  // The wrapped task sets the state wherever the caller runs it. It needs no memory of its own.
  task = [in_state = std::move(in_state)] {
    ScopedExecutionState scope(in_state->state);
    in_state->task();
    in_state->task = nullptr;  // Destroy what the task owned in the task's state.
  };
  return post_clean(task);
}

bool Executor::called_on_duty() { return on_duty(); }

void Executor::run_here(absl::FunctionRef<void()> function) {
  const OffDutyScope off_duty;
  function();
}

bool Executor::post_clean_or_keep(Task& task, TaskCost* cost) noexcept {
  try {
    return post_clean(task, cost);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Executor::post_clean_or_run(Task task, TaskCost* cost) noexcept {
  if (post_clean_or_keep(task, cost)) return;
  run_here([&] {
    ScopedExecutionState clean;
    run_contained("a task that its executor has refused", task);
  });
}

Executor* Executor::current() { return current_executor; }
void Executor::set_current(Executor* executor) { current_executor = executor; }

void set_executor_source(ExecutorSource source) { executor_source.store(source); }

std::shared_ptr<Executor> adopted_executor() {
  const ExecutorSource source = executor_source.load(std::memory_order_relaxed);
  return source == nullptr ? nullptr : source();
}

BlockingScope::BlockingScope(const Executor* driven) : executor_(blocked ? nullptr : Executor::current()) {
  assert(!on_duty());
  if (executor_ == nullptr) return;
  // If this fails, the scope has no effect: the caller must not wait, and the destructor undoes nothing.
  status_ = executor_->begin_blocking(executor_ == driven);
  if (!status_.ok()) return;
  blocked = true;
  // The listener is removed while it runs: otherwise a listener that waits would call itself.
  if (BlockingListener* listener = std::exchange(blocking_listener, nullptr)) {
    run_contained("the listener of a wait", *listener);
    blocking_listener = listener;
  }
}

BlockingScope::~BlockingScope() {
  if (executor_ == nullptr || !status_.ok()) return;
  blocked = false;
  executor_->end_blocking();
}

BlockingListenerScope::BlockingListenerScope(BlockingListener& listener)
    : previous_(std::exchange(blocking_listener, &listener)) {}

BlockingListenerScope::~BlockingListenerScope() { blocking_listener = previous_; }

}  // namespace gradwire
