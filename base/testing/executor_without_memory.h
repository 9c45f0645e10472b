#pragma once

#include <new>

#include "absl/status/status.h"
#include "gradwire/base/threads/executor.h"

namespace gradwire {

// Has no memory for tasks.
class ExecutorWithoutMemory : public Executor {
 public:
  using Executor::post_clean;
  bool post_clean(Task&, TaskCost*) override { throw std::bad_alloc(); }

 protected:
  absl::Status begin_blocking(bool) override { return absl::OkStatus(); }
  void end_blocking() override {}
};

}  // namespace gradwire
