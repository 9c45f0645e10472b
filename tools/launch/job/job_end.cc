// How a launcher's run ends, and what it waits for until then.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/job/job.h"
#include "gradwire/tools/launch/job/summary.h"

namespace gradwire::tools {
namespace {

// How long what the launcher cannot end may keep a worker's pipe before it is cut off.
constexpr absl::Duration kDrain = absl::Seconds(2);
// For the other nodes to hear that this one leaves.
constexpr absl::Duration kGoodbye = absl::Seconds(3);
// Before the user is told what is waited for.
constexpr absl::Duration kQuiet = absl::Seconds(5);

}  // namespace

bool LaunchJob::over() {
  if (supervisor_) return false;
  const absl::Time now = Clock::system().now();
  const bool ended = update_.kind == rendezvous::RendezvousUpdate::Kind::kEnded;
  if (give_up_at_ == absl::InfiniteFuture()) {
    // Others may need this launcher's store to learn that the job is over.
    if (ended) {
      give_up_at_ = now + options_.conf.close_timeout;
    } else if (interrupted_by_ != 0) {
      give_up_at_ = now + kGoodbye;
    }
  }
  return force_kill_ || now >= give_up_at_ || (ended && client_->done());
}

absl::Duration LaunchJob::next_wait() const {
  if (supervisor_) return supervisor_->next_wait();
  const bool silent = logged_ || options_.max_nodes == 1;
  const absl::Time next = silent ? give_up_at_ : std::min(give_up_at_, said_at_ + kQuiet);
  return std::max(next - Clock::system().now(), absl::ZeroDuration());
}

void LaunchJob::log_progress() {
  if (logged_ || supervisor_ || options_.max_nodes == 1 || Clock::system().now() < said_at_ + kQuiet) return;
  logged_ = true;
  if (update_.kind == rendezvous::RendezvousUpdate::Kind::kEnded) {
    outputs_.say("the job is over; serving the store until the other nodes know");
  } else if (succeeded_) {
    outputs_.say("this node's workers have ended well; waiting for the other nodes'");
  } else {
    const std::string most = options_.elastic() ? absl::StrCat(" to ", options_.max_nodes) : "";
    outputs_.say(
        absl::StrCat("waiting for ", options_.min_nodes, most, " nodes to meet in the ", stores_->place()));
  }
}

void LaunchJob::let_output_through() {
  Clock& clock = Clock::system();
  const absl::Time cut_off = clock.now() + kDrain;
  while (outputs_.pumps_open() && !force_kill_ && clock.now() < cut_off)
    loop_.run_once(cut_off - clock.now());
  outputs_.close_pumps();
  // As long as its reader takes, as a program that writes to a slow reader waits too; after a signal only for
  // a moment.
  while (!outputs_.flushed() && !force_kill_ && (interrupted_by_ == 0 || clock.now() < cut_off)) {
    loop_.run_once(interrupted_by_ == 0 ? absl::InfiniteDuration() : cut_off - clock.now());
  }
}

absl::StatusOr<int> LaunchJob::conclude() {
  const rendezvous::Outcome& outcome = update_.outcome;
  if (interrupted_by_ != 0) return succeeded_ ? 0 : 128 + interrupted_by_;
  if (outcome.status.ok()) return 0;
  // What the nodes agree was first; what failed here may have followed from it.
  std::vector<rendezvous::Failure> others = failures_;
  std::optional<rendezvous::Failure> first = outcome.failure;
  if (!first && !others.empty()) first = others.front();
  if (!first) {
    // It may be another job's store.
    if (absl::IsInvalidArgument(outcome.status)) return with_context(outcome.status, stores_->place());
    return outcome.status;
  }
  others.erase(std::remove_if(others.begin(), others.end(),
                              [&](const rendezvous::Failure& each) {
                                return each.rank < 0 || (each.host == first->host && each.pid == first->pid);
                              }),
               others.end());
  if (first->rank < 0) {
    outputs_.say(rendezvous::describe(*first));
  } else {
    outputs_.say_lines(failure_summary(options_.program, *first, others));
  }
  let_output_through();
  const int code = first->signal != 0 ? 128 + first->signal : first->exit_code;
  return code != 0 ? code : 1;
}

}  // namespace gradwire::tools
