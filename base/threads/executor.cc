#include "gradwire/base/threads/executor.h"

#include <utility>

#include "gradwire/base/threads/execution_state.h"

namespace gradwire {
namespace {

thread_local Executor* current_executor = nullptr;
thread_local BlockingListener* blocking_listener = nullptr;
// Whether the calling thread is counted as waiting.
thread_local bool blocked = false;

}  // namespace

bool Executor::post(Task& task) {
  Task wrapped = [state = ExecutionState::capture(), task = std::move(task)]() mutable {
    ScopedExecutionState scope(state);
    task();
    task = nullptr;  // Destroy what the task owned in the task's state.
  };
  if (post_clean(wrapped)) return true;
  // The wrapped task sets the state wherever the caller runs it.
  task = std::move(wrapped);
  return false;
}

void Executor::post_or_run(Task task) {
  if (!post(task)) task();
}

Executor* Executor::current() { return current_executor; }
void Executor::set_current(Executor* executor) { current_executor = executor; }

BlockingScope::BlockingScope(const Executor* driven) : executor_(blocked ? nullptr : Executor::current()) {
  if (executor_ == nullptr) return;
  // If this fails, the scope has no effect: the caller must not wait, and the destructor undoes nothing.
  status_ = executor_->begin_blocking(executor_ == driven);
  if (!status_.ok()) return;
  blocked = true;
  // The listener is removed while it runs: otherwise a listener that waits would call itself.
  if (BlockingListener* listener = set_blocking_listener(nullptr)) {
    (*listener)();
    set_blocking_listener(listener);
  }
}

BlockingScope::~BlockingScope() {
  if (executor_ == nullptr || !status_.ok()) return;
  blocked = false;
  executor_->end_blocking();
}

BlockingListener* set_blocking_listener(BlockingListener* listener) {
  return std::exchange(blocking_listener, listener);
}

}  // namespace gradwire
