#pragma once

#include <deque>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "base/executor.h"
#include "base/mutex.h"

namespace gradwire::rpc {

// A queue whose tasks start one after another on an executor: the next starts when the running one says so, by calling
// what it was given (any thread, more than once does no harm) or by dropping it. Thread-safe. Tasks keep the strand
// alive.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  // Lets the next task start.
  using Next = absl::AnyInvocable<void()>;
  using Task = absl::AnyInvocable<void(Next next)>;

  explicit Strand(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  void post(Task task);

 private:
  class Turn;
  void start(Task task);
  void next();

  const std::shared_ptr<Executor> executor_;
  Mutex mutex_;
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::rpc
