#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire {

// Runs a task again and again on a thread of its own, so that the task may block: for example to examine
// files. The task first runs one period after the start, and then one period after each end.
//
// The destructor does not wait for a task that is running. The thread then ends after the task, which must
// own what it uses. On a thread on duty (base/duty.h) the destructor does not wait for the thread at all: a
// connection may be the last owner of the certificates that a task examines.
class RepeatedTask {
 public:
  struct Options {
    // The name of the thread.
    std::string name;
    absl::Duration period = absl::Seconds(1);
    Clock* clock = &Clock::system();
  };

  // ResourceExhausted if the system has no threads left.
  static absl::StatusOr<std::unique_ptr<RepeatedTask>> start(Options options, std::function<void()> task);
  ~RepeatedTask();
  RepeatedTask(const RepeatedTask&) = delete;
  RepeatedTask& operator=(const RepeatedTask&) = delete;

 private:
  struct State;

  explicit RepeatedTask(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(State& state);

  const std::shared_ptr<State> state_;
};

// Starts to run a task again and again, until the result is destroyed. For classes whose tests run the task
// themselves.
using Repeat = std::function<absl::StatusOr<std::shared_ptr<void>>(std::function<void()> task)>;
// A Repeat that uses a RepeatedTask.
Repeat repeat(RepeatedTask::Options options);

}  // namespace gradwire
