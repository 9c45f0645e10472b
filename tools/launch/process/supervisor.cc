#include "gradwire/tools/launch/process/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
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

namespace {

// Poll interval: the supervisor is not notified of the end of processes that workers left behind.
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
// How long the kernel may take to end killed processes.
constexpr absl::Duration kKillTimeout = absl::Seconds(5);
constexpr absl::Duration kSameSignal = absl::Seconds(1);

}  // namespace

Supervisor::Supervisor(const HostInfo& host_info, absl::Duration grace_period, Callbacks callbacks)
    : loop_(host_info.loop),
      clock_(host_info.clock),
      reaper_(host_info.reaper),
      grace_period_(grace_period),
      callbacks_(std::move(callbacks)) {}

Supervisor::~Supervisor() {
  for (const Worker& worker : workers_) loop_.remove(worker.pid_fd());
}

absl::Status Supervisor::add(Worker worker) {
  workers_.push_back(std::move(worker));
  Worker& added = workers_.back();
  return loop_.add(added.pid_fd(), EPOLLIN, [this, &added](uint32_t) { on_end(added); });
}

// The first failure ends the round. Failures after it count too, unless the launcher's own signal explains
// them. A worker that ends with 0 changes nothing: advance() notices when all have ended.
void Supervisor::on_end(Worker& worker) {
  worker.note_end();
  if (!worker.ended()) return;
  loop_.remove(worker.pid_fd());
  const Ending& ending = worker.ending();
  if (ending.success()) return;
  if (state_ == State::kRunning) {
    failures_.push_back(&worker);
    // It may have failed because of a worker that ended earlier, whose event the loop has not delivered yet.
    for (Worker& other : workers_) other.note_end();
    callbacks_.failed(worker);
    stop(SIGTERM);
  } else if (!failures_.empty() && !was_requested(ending)) {
    failures_.push_back(&worker);
  }
}

// Whether the ending is one that the launcher's signal can have caused. The worker may also have failed by
// itself; the two cannot be distinguished.
bool Supervisor::was_requested(const Ending& ending) const {
  const int signal = ending.exit_code() - 128;
  return signal == SIGTERM || signal == SIGKILL || (forwarded_ != 0 && signal == forwarded_);
}

void Supervisor::on_signal(int signal) {
  const absl::Time now = clock_.now();
  if (forwarded_ != 0) {
    // A scheduler may send a signal to the launcher and, a moment later, to all processes that it started.
    // That counts as one request.
    if (now - forwarded_at_ < kSameSignal) return;
    callbacks_.print(absl::StrCat("received ", signal_name(signal), " once more: killing the workers"));
    kill_all();
    return;
  }
  forwarded_ = signal;
  forwarded_at_ = now;
  callbacks_.print(absl::StrCat("received ", signal_name(signal), ": forwarded to the workers"));
  if (state_ == State::kRunning) {
    stop(signal);
  } else {
    for (Worker& worker : workers_) worker.signal_group(signal);
  }
}

void Supervisor::end() {
  if (state_ == State::kRunning) stop(SIGTERM);
}

void Supervisor::stop(int signal) {
  state_ = State::kStopping;
  deadline_ = clock_.now() + grace_period_;
  for (Worker& worker : workers_) worker.signal_group(signal);
}

// A killed process may hang in the kernel, so there is a deadline here too. After it the supervisor gives
// up.
void Supervisor::kill_all() {
  state_ = State::kKilled;
  deadline_ = clock_.now() + kKillTimeout;
  for (Worker& worker : workers_) worker.signal_group(SIGKILL);
  reaper_.end_rest(SIGKILL);
}

bool Supervisor::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ended(); });
}

// 1. While workers run, nothing is to be done.
// 2. When all workers have ended, or all were killed: end what they have left behind. Done if nothing is
//    left.
// 3. Otherwise stop, if this is the first turn in which only orphans are left; kill, if the grace period is
//    over; or give up, if processes do not end although they were killed.
bool Supervisor::advance() {
  if (!all_ended() && state_ == State::kRunning) return false;
  // Killed processes may leave orphans, so call end_rest() each time.
  if (state_ == State::kKilled) {
    if (reaper_.end_rest(SIGKILL) && all_ended()) return true;
  } else if (all_ended() && reaper_.end_rest(SIGTERM)) {
    return true;
  }
  if (state_ == State::kRunning) {
    stop(SIGTERM);
  } else if (clock_.now() >= deadline_) {
    if (state_ == State::kKilled) return true;
    const int left =
        std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.ended(); });
    callbacks_.print(
        absl::StrCat(left > 0 ? absl::StrCat(left, " workers") : "processes that workers started",
                     " did not end within ", absl::FormatDuration(grace_period_), ": killed"));
    kill_all();
  }
  return false;
}

absl::Duration Supervisor::next_wait() const {
  if (state_ == State::kRunning) return absl::InfiniteDuration();
  const absl::Duration until_deadline = std::max(deadline_ - clock_.now(), absl::ZeroDuration());
  return all_ended() || state_ == State::kKilled ? std::min(kPollInterval, until_deadline) : until_deadline;
}

std::vector<const Worker*> Supervisor::ended_well() const {
  std::vector<const Worker*> found;
  for (const Worker& worker : workers_) {
    if (worker.ended() && worker.ending().success()) found.push_back(&worker);
  }
  return found;
}

bool Supervisor::succeeded() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.ended() && worker.ending().success(); });
}

}  // namespace gradwire::tools
