#include "base/executor.h"

#include <utility>

#include "base/execution_state.h"

namespace gradwire {
namespace {

thread_local Executor* current_executor = nullptr;
thread_local BlockingListener* blocking_listener = nullptr;

}  // namespace

bool Executor::post(Task& task) {
  Task wrapped = [state = ExecutionState::capture(), task = std::move(task)]() mutable {
    state.restore();
    state = ExecutionState();
    task();
  };
  if (post_clean(wrapped)) return true;
  // The wrapper is of no use to the caller, who may want to run the task itself.
  task = std::move(wrapped);
  return false;
}

void Executor::post_or_run(Task task) {
  if (post(task)) return;
  ScopedExecutionState keep{ExecutionState::capture()};
  task();
}

Executor* Executor::current() { return current_executor; }
void Executor::set_current(Executor* executor) { current_executor = executor; }

BlockingScope::BlockingScope() : executor_(Executor::current()) {
  if (executor_ == nullptr) return;
  if (blocking_listener != nullptr) (*blocking_listener)();
  status_ = executor_->begin_blocking();
}

BlockingScope::~BlockingScope() {
  if (executor_ != nullptr && status_.ok()) executor_->end_blocking();
}

BlockingListener* set_blocking_listener(BlockingListener* listener) {
  return std::exchange(blocking_listener, listener);
}

}  // namespace gradwire
