#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives {

// A round in which every rank of a group brings a text to the store and all get one verdict. Rank 0 looks at
// the texts as they come. One that comes too late gets the verdict too, so that all have been through equally
// many rounds.
struct Agreement {
  store::Store& store;
  // Used by this round alone.
  std::string key;
  int rank = 0;
  int size = 1;
  // A time of Clock::system().
  absl::Time deadline = absl::InfiniteFuture();
  // Asked now and then while waiting; its error ends the wait.
  std::function<absl::Status()> interrupted;
  // Missing ranks: all of them are named, or the first alone.
  bool name_all = true;
};

// Rank 0's judgement of another rank's text; its own is `first`.
using Judge = std::function<absl::Status(int rank, absl::string_view first, absl::string_view text)>;

// Errors: the judge's, on every rank; DeadlineExceeded that names the ranks that did not come; the store's.
absl::Status agree(const Agreement& round, absl::string_view text, const Judge& judge = nullptr);

// Removes what a round has left in the store. By one rank, when all have got their verdict.
void forget(store::Store& store, absl::string_view key, int size);

// The barriers of one group that name the ranks that do not come: rounds without a text. Not thread-safe.
class MonitoredBarrier {
 public:
  // All ranks call it equally often. Gives `round` its key, and its deadline from `timeout`. Errors as
  // agree(), DeadlineExceeded with the time.
  absl::Status run(Agreement round, absl::Duration timeout);

 private:
  int64_t next_ = 0;
  int64_t forgotten_ = 0;
};

// The value of a key when it is there, waited for in slices, so that `interrupted` is asked.
absl::StatusOr<std::string> wait_for_key(store::Store& store, const std::string& key, absl::Time deadline,
                                         const std::function<absl::Status()>& interrupted);

// "rank 3", "ranks 3, 5".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace gradwire::collectives
