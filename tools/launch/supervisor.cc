#include "tools/launch/supervisor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {
namespace {

// Group members are nobody's children: their end is looked for, not announced.
constexpr absl::Duration kLookAgain = absl::Milliseconds(20);
// For the kernel to take away what was killed.
constexpr absl::Duration kAfterKill = absl::Seconds(5);
constexpr absl::Duration kSameSignal = absl::Seconds(1);

}  // namespace

Supervisor::Supervisor(EventLoop& loop, Clock& clock, absl::Duration grace_period, std::string host,
                       Callbacks callbacks)
    : loop_(loop),
      clock_(clock),
      grace_period_(grace_period),
      host_(std::move(host)),
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
  if (worker.ending().success() || state_ != State::kRunning) return;
  failure_ = Failure{.exit_code = worker.ending().exit_code(), .description = describe(worker)};
  callbacks_.failed(*failure_);
  stop(SIGTERM);
}

std::string Supervisor::describe(const Worker& worker) const {
  const WorkerPlace& place = worker.place();
  return absl::StrCat(
      "rank ", place.rank, " failed first: it ", worker.ending().description(), " (local rank ",
      place.local_rank, ", role ", place.role, ", host ", host_, ", pid ", worker.pid(), ", ",
      absl::FormatTime("%Y-%m-%d %H:%M:%E3S %Ez", worker.ending().time, absl::LocalTimeZone()), ")");
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

void Supervisor::end_for(const Failure& failure) {
  if (state_ != State::kRunning) return;
  failure_ = failure;
  stop(SIGTERM);
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
}

bool Supervisor::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ended(); });
}

bool Supervisor::all_gone() {
  bool gone = true;
  for (Worker& worker : workers_) gone = worker.group_gone() && gone;
  return gone;
}

bool Supervisor::advance() {
  if (!all_ended() && state_ == State::kRunning) return false;
  if (all_ended() && all_gone()) return true;
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
  return all_ended() ? std::min(kLookAgain, until_deadline) : until_deadline;
}

int Supervisor::exit_code() const {
  if (failure_) return failure_->exit_code;
  const bool well = std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.ended() && worker.ending().success();
  });
  return well ? 0 : 128 + passed_on_;
}

}  // namespace gradwire::tools
