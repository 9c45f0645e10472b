#include "gradwire/tools/launch/process/supervisor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {
namespace {

// What workers left behind is not watched one by one: its end is looked for, not announced.
constexpr absl::Duration kLookAgain = absl::Milliseconds(20);
// For the kernel to take away what was killed.
constexpr absl::Duration kAfterKill = absl::Seconds(5);
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

void Supervisor::on_end(Worker& worker) {
  worker.note_end();
  if (!worker.ended()) return;
  loop_.remove(worker.pid_fd());
  const Ending& ending = worker.ending();
  if (ending.success()) return;
  if (state_ == State::kRunning) {
    failures_.push_back(&worker);
    // It may have failed because of one that ended before it, of which the loop has not told yet.
    for (Worker& other : workers_) other.note_end();
    callbacks_.failed(worker);
    stop(SIGTERM);
  } else if (!failures_.empty() && !asked_for(ending)) {
    failures_.push_back(&worker);
  }
}

// Whether a worker that was asked to end may well have ended so. It may also have failed so, and nobody can
// tell.
bool Supervisor::asked_for(const Ending& ending) const {
  const int signal = ending.exit_code() - 128;
  return signal == SIGTERM || signal == SIGKILL || (passed_on_ != 0 && signal == passed_on_);
}

void Supervisor::on_signal(int signal) {
  const absl::Time now = clock_.now();
  if (passed_on_ != 0) {
    // A scheduler may send a signal to the launcher and, a moment later, to all that it started: that is one
    // request.
    if (now - passed_on_at_ < kSameSignal) return;
    callbacks_.say(absl::StrCat("received ", signal_name(signal), " once more: killing the workers"));
    kill_all();
    return;
  }
  passed_on_ = signal;
  passed_on_at_ = now;
  callbacks_.say(absl::StrCat("received ", signal_name(signal), ": passed on to the workers"));
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

void Supervisor::kill_all() {
  state_ = State::kKilled;
  deadline_ = clock_.now() + kAfterKill;
  for (Worker& worker : workers_) worker.signal_group(SIGKILL);
  reaper_.end_rest(SIGKILL);
}

bool Supervisor::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ended(); });
}

bool Supervisor::advance() {
  if (!all_ended() && state_ == State::kRunning) return false;
  // What was killed may leave others, each time.
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
    callbacks_.say(absl::StrCat(left > 0 ? absl::StrCat(left, " workers") : "processes that workers started",
                                " did not end within ", absl::FormatDuration(grace_period_), ": killed"));
    kill_all();
  }
  return false;
}

absl::Duration Supervisor::next_wait() const {
  if (state_ == State::kRunning) return absl::InfiniteDuration();
  const absl::Duration until_deadline = std::max(deadline_ - clock_.now(), absl::ZeroDuration());
  return all_ended() || state_ == State::kKilled ? std::min(kLookAgain, until_deadline) : until_deadline;
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
