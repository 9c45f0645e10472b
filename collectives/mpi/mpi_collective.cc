#include "gradwire/collectives/mpi/mpi_collective.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives {
namespace {

// A collective is slow after this time, or after a quarter of the time it has, if that is less.
constexpr absl::Duration kSlow = absl::Milliseconds(100);
// How often the store is asked who has left.
constexpr absl::Duration kLooks = absl::Milliseconds(250);

}  // namespace

absl::Status MpiCollective::finish() {
  MpiPause pause;
  absl::Duration slow = kSlow;
  absl::Time next_look = absl::InfinitePast();
  statuses_.resize(requests_.size());
  for (bool first = true;;) {
    int done = 0;
    const absl::Status status = member_.runtime().call("MPI_Testall", [&] {
      return MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    });
    if (!status.ok()) return break_off(with_context(status, name_));
    if (done != 0) return absl::OkStatus();
    if (member_.broken()) return break_off(member_.refusal());
    if (!pause.pause()) continue;
    if (std::exchange(first, false)) slow = std::min(slow, (deadline_ - pause.now()) / 4);
    if (pause.now() >= deadline_) return break_off(overdue());
    if (pause.waited() < slow) continue;
    member_.witness().wait_in(progress_.begun);
    if (pause.now() < next_look) continue;
    next_look = pause.now() + kLooks;
    const absl::Status departures = member_.witness().departures(progress_.begun);
    if (!departures.ok()) return break_off(with_context(departures, name_));
  }
}

absl::Status MpiCollective::overdue() {
  // Ranks that wait for this one in turn must find that it came.
  member_.witness().wait_in(progress_.begun);
  const std::string missing = member_.witness().missing(progress_.begun);
  return absl::DeadlineExceededError(absl::StrCat(
      name_, " number ", progress_.begun, " of the group did not end in time on rank ", member_.rank(), ": ",
      missing.empty() ? "every rank has come, and it is still under way" : missing));
}

absl::Status MpiCollective::break_off(const absl::Status& reason) {
  const bool first = !member_.broken();
  (void)member_.break_with(reason);
  // A group that was left in order, or aborted, has said so.
  if (first) member_.witness().leave(progress_.finished.load(), reason.message());
  member_.abandon(std::move(requests_), std::move(tensors_));
  return reason;
}

}  // namespace gradwire::collectives
