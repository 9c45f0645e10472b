// The part of LaunchJob that decides when the run ends, and with which exit code.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log_level.h"
#include "gradwire/tools/launch/io/launcher_lines.h"
#include "gradwire/tools/launch/job/job.h"
#include "gradwire/tools/launch/job/summary.h"

namespace gradwire::tools {
namespace {

// How long a process that the launcher cannot end may keep a worker's pipe open before its output is cut off.
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
// How long the launcher may take to report to the other nodes that it leaves.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(3);

// The failures that are not the first one.
std::vector<rendezvous::Failure> others_of(std::vector<rendezvous::Failure> failures,
                                           const rendezvous::Failure& first) {
  std::erase_if(failures, [&](const rendezvous::Failure& each) {
    return each.rank < 0 || (each.host == first.host && each.pid == first.pid);
  });
  return failures;
}

void print_trace(const JobTrace& trace, WorkerOutputs& outputs) {
  for (const std::string& line : trace.write()) outputs.print(line);
}

}  // namespace

// The run is over when the rendezvous has ended for this node and no other node needs its store. A limit
// keeps it from waiting indefinitely; the limit begins when the job has ended, or after a signal.
bool LaunchJob::over() {
  if (supervisor_) return false;
  const absl::Time now = Clock::system().now();
  const bool ended = update_.kind == rendezvous::RendezvousUpdate::Kind::kEnded;
  if (give_up_at_ == absl::InfiniteFuture()) {
    // Others may need this launcher's store to learn that the job is over.
    if (ended) {
      give_up_at_ = now + options_.conf.close_timeout;
    } else if (interrupted_by_ != 0) {
      give_up_at_ = now + kLeaveTimeout;
    }
  }
  return force_kill_ || now >= give_up_at_ || (ended && client_->done());
}

absl::Duration LaunchJob::next_wait() const {
  if (supervisor_) {
    return std::min(supervisor_->next_wait(), arrivals_ ? arrivals_->until_next() : absl::InfiniteDuration());
  }
  const absl::Duration left = std::max(give_up_at_ - Clock::system().now(), absl::ZeroDuration());
  return wait_ ? std::min(left, wait_->until_next()) : left;
}

// A job on one node waits for nobody.
void LaunchJob::begin_wait() {
  wait_.reset();
  if (options_.max_nodes > 1) wait_.emplace(Progress::Target{.output = &wait_output_});
}

void LaunchJob::show_wait() {
  if (arrivals_) arrivals_->show();
  if (wait_ && !supervisor_) wait_->update([this] { return wait_state(); });
}

ProgressState LaunchJob::wait_state() const {
  if (update_.kind == rendezvous::RendezvousUpdate::Kind::kEnded) {
    return {.text =
                "waiting for the other nodes to learn that the job is over; serving the store until then"};
  }
  const std::string where = stores_ ? stores_->location() : std::string("store of the job");
  ProgressState state = client_ ? client_->wait_state() : ProgressState();
  state.text = state.text.empty() ? absl::StrCat("waiting for an answer of the ", where)
                                  : absl::StrCat(state.text, "; in the ", where);
  return state;
}

void LaunchJob::drain_output() {
  Clock& clock = Clock::system();
  const absl::Time cut_off = clock.now() + kDrainTimeout;
  while (outputs_.pumps_open() && !force_kill_ && clock.now() < cut_off)
    loop_.run_once(cut_off - clock.now());
  outputs_.close_pumps();
  // Wait until the launcher's output has been read, as any program waits for a slow reader; after a signal
  // only for a moment.
  while (!outputs_.flushed() && !force_kill_ && (interrupted_by_ == 0 || clock.now() < cut_off)) {
    loop_.run_once(interrupted_by_ == 0 ? absl::InfiniteDuration() : cut_off - clock.now());
  }
}

// The exit code, in this order of precedence:
// 1. After a signal 128 + its number, as in a shell, unless the workers had succeeded before.
// 2. 0 if the job has succeeded.
// 3. The code of the failure that all nodes agree on. Every node prints it, so the cause can be found on any
//    of them.
// 4. Without a failure, the error of the rendezvous, which main() turns into a code.
absl::StatusOr<int> LaunchJob::conclude() {
  wait_.reset();
  // The user who has sent a second signal does not wait for it.
  if (!force_kill_ && trace_.enabled()) {
    print_trace(trace_, outputs_);
    drain_output();
  }
  const rendezvous::Outcome& outcome = update_.outcome;
  if (interrupted_by_ != 0 || outcome.status.ok()) {
    return interrupted_by_ == 0 || succeeded_ ? 0 : 128 + interrupted_by_;
  }
  // The nodes agree which failure was the first; failures on this node may be its consequences.
  std::optional<rendezvous::Failure> first = outcome.failure;
  if (!first && !failures_.empty()) first = failures_.front();
  if (!first) {
    // The store may belong to another job: add its location.
    if (absl::IsInvalidArgument(outcome.status)) return with_context(outcome.status, stores_->location());
    return outcome.status;
  }
  if (first->rank < 0) {
    outputs_.print(rendezvous::describe(*first));
  } else {
    outputs_.print_lines(launcher_lines(
        failure_summary(options_.program, *first, others_of(failures_, *first)), LogLevel::kError));
  }
  drain_output();
  const int code = first->signal != 0 ? 128 + first->signal : first->exit_code;
  return code != 0 ? code : 1;
}

}  // namespace gradwire::tools
