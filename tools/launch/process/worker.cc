#include "gradwire/tools/launch/process/worker.h"

#include <poll.h>
#include <signal.h>

#include <optional>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::tools {

absl::StatusOr<Worker> Worker::start(ProcessReaper& reaper, const WorkerPlace& place,
                                     const WorkerStart& start) {
  GRADWIRE_ASSIGN_OR_RETURN(ProcessReaper::Started started, reaper.start_worker(start));
  return Worker(reaper, place, std::move(started));
}

Worker::Worker(Worker&& other) noexcept
    : reaper_(other.reaper_),
      place_(std::move(other.place_)),
      pid_(std::exchange(other.pid_, 0)),
      pid_fd_(std::move(other.pid_fd_)),
      ended_(other.ended_),
      ending_(other.ending_) {}

Worker::~Worker() {
  if (pid_ == 0 || ended_) return;
  signal_group(SIGKILL);
  // Wait with a limit, because a process that hangs in the kernel cannot be killed.
  pollfd end{.fd = pid_fd_.get(), .events = POLLIN};
  constexpr int kTimeoutMilliseconds = 5000;
  if (poll(&end, 1, kTimeoutMilliseconds) > 0) note_end();
}

void Worker::note_end() {
  if (ended_) return;
  const std::optional<Ending> ending = reaper_->ending(pid_);
  if (!ending) return;
  ended_ = true;
  ending_ = *ending;
}

void Worker::signal_group(int signal) { reaper_->signal_group(pid_, signal); }

}  // namespace gradwire::tools
