#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives {

// A round of agreement: every rank of a group writes a text to the store, and all get the same verdict. Rank
// 0 compares the texts as they arrive and publishes the verdict. A rank that arrives too late gets that
// verdict too, so all ranks have taken part in the same number of rounds.
struct Agreement {
  store::Store& store;
  // The prefix of this round's keys; no other round uses it.
  std::string key;
  int rank = 0;
  int size = 1;
  // A time of Clock::system().
  absl::Time deadline = absl::InfiniteFuture();
  // Called about every 100 ms while this rank waits; an error ends the wait. nullptr: the wait cannot be
  // interrupted.
  std::function<absl::Status()> interrupted;
  // Whether the error names all missing ranks, or only the first one.
  bool name_all = true;
  // Names the meeting in the progress of a long wait, for example: process group "world": backends.
  // In a log one rank shows it: rank 0, or the lowest of those that wait for rank 0. Empty: none does.
  std::string subject = {};
  Progress::Target progress = {};
};

// Called on rank 0 for the text of each other rank; returns an error if the texts do not agree. `first` is
// rank 0's own text.
using Judge = std::function<absl::Status(int rank, absl::string_view first, absl::string_view text)>;

// Runs the round. Errors: the error of `judge`, on every rank; DeadlineExceeded that names the ranks that did
// not arrive; the errors of the store.
absl::Status agree(const Agreement& round, absl::string_view text, const Judge& judge = nullptr);

// Removes the texts and the verdict of a round from the store. One rank calls it, after all ranks have got
// the verdict.
void forget(store::Store& store, absl::string_view key, int size);

// The monitored barriers of one group. Each is a round of agreement without texts. Not thread-safe.
class MonitoredBarrier {
 public:
  // All ranks must call it the same number of times. Sets the key, the deadline and the subject of `round`.
  // Errors: as agree(); DeadlineExceeded also gives the timeout.
  absl::Status run(Agreement round, absl::Duration timeout);

 private:
  int64_t next_ = 0;
  int64_t forgotten_ = 0;
};

// Waits until a key exists and returns its value. Waits in short slices, and calls `interrupted` between
// them.
absl::StatusOr<std::string> wait_for_key(store::Store& store, const std::string& key, absl::Time deadline,
                                         const std::function<absl::Status()>& interrupted);

// For messages: "rank 3" or "ranks 3, 5".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace gradwire::collectives
