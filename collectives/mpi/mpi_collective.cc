#include "gradwire/collectives/mpi/mpi_collective.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives {
namespace {

// A collective is slow after this time, or after a quarter of the time until its deadline if that is less.
constexpr absl::Duration kSlow = absl::Milliseconds(100);
// The interval at which a slow collective asks the store which ranks have left.
constexpr absl::Duration kStoreInterval = absl::Milliseconds(250);

}  // namespace

// MPI does not report which ranks are missing, and a wait in MPI cannot be ended. So this function tests, and
// checks the other causes of an end between the tests:
// 1. MPI reports an error, or that all requests have ended.
// 2. Another thread has broken the group.
// 3. The deadline has passed.
// 4. When the collective is slow: report in the store that this rank waits, and check whether a rank has
//    left. A fast collective does not use the store.
absl::Status MpiCollective::finish() {
  MpiPause pause;
  absl::Duration slow = kSlow;
  absl::Time next_store_check = absl::InfinitePast();
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
    member_.witness().report_waiting(progress_.begun);
    if (pause.now() < next_store_check) continue;
    next_store_check = pause.now() + kStoreInterval;
    const absl::Status departures = member_.witness().check_departures(progress_.begun);
    if (!departures.ok()) return break_off(with_context(departures, name_));
  }
}

absl::Status MpiCollective::overdue() {
  // Other ranks may wait in this collective too. When they report who is missing, they must see that this
  // rank has arrived.
  member_.witness().report_waiting(progress_.begun);
  const std::string missing = member_.witness().missing(progress_.begun);
  return absl::DeadlineExceededError(
      absl::StrCat(name_, " (collective number ", progress_.begun,
                   " of the group) did not end in time on rank ", member_.rank(), ": ",
                   missing.empty() ? "all ranks have arrived, but the operation has not ended" : missing));
}

absl::Status MpiCollective::break_off(const absl::Status& reason) {
  const bool first = !member_.broken();
  (void)member_.break_with(reason);
  // If the group was broken before, its first error has already been reported to the other members.
  if (first) member_.witness().report_leaving(progress_.finished.load(), reason.message());
  // A collective cannot be cancelled. MPI may use its requests and tensors until the process ends.
  member_.abandon(std::move(requests_), std::move(tensors_));
  return reason;
}

}  // namespace gradwire::collectives
