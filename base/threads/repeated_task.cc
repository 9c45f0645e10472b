#include "gradwire/base/threads/repeated_task.h"

#include <thread>
#include <utility>

#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire {

struct RepeatedTask::State {
  State(Options given, std::function<void()> given_task)
      : options(std::move(given)), task(std::move(given_task)) {}

  const ProcessMark mark;
  const Options options;
  const std::function<void()> task;
  // Set by start(), and used by the destructor.
  std::thread thread;

  Mutex mutex;
  CondVar changed;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool running ABSL_GUARDED_BY(mutex) = false;
};

absl::StatusOr<std::unique_ptr<RepeatedTask>> RepeatedTask::start(Options options,
                                                                  std::function<void()> task) {
  auto state = std::make_shared<State>(std::move(options), std::move(task));
  GRADWIRE_ASSIGN_OR_RETURN(state->thread, start_thread(state->options.name, [state] { run(*state); }));
  return std::unique_ptr<RepeatedTask>(new RepeatedTask(std::move(state)));
}

// A thread that runs the task may do so for long, so it is left behind. It does not use the clock any more.
// The task may own this object, and so destroy it on that thread. A thread on duty waits for no other thread,
// so it leaves a waiting one behind, too, which ends as soon as it runs.
RepeatedTask::~RepeatedTask() {
  if (!state_->mark.here()) return;  // The copy of the thread keeps the state.
  bool running;
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
    running = state_->running;
    state_->changed.notify_all();
  }
  if (running || on_duty()) {
    state_->thread.detach();
  } else {
    state_->thread.join();
  }
}

void RepeatedTask::run(State& state) {
  Clock& clock = *state.options.clock;
  state.mutex.lock();
  while (!state.stopping) {
    const absl::Time next = clock.now() + state.options.period;
    while (!state.stopping && clock.now() < next) clock.wait_until(state.mutex, state.changed, next);
    if (state.stopping) break;
    state.running = true;
    state.mutex.unlock();
    state.task();
    if (!state.mark.here()) end_forked_child("a repeated task");
    state.mutex.lock();
    state.running = false;
  }
  state.mutex.unlock();
}

Repeat repeat(RepeatedTask::Options options) {
  return [options = std::move(options)](std::function<void()> task) -> absl::StatusOr<std::shared_ptr<void>> {
    GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<RepeatedTask> started,
                              RepeatedTask::start(options, std::move(task)));
    return std::shared_ptr<RepeatedTask>(std::move(started));
  };
}

}  // namespace gradwire
