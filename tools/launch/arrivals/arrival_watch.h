#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::tools {

// The first group of all workers of a round, as the store shows it (store/formation/formation_record.h).
struct Meeting {
  enum class State : uint8_t {
    // No worker has come to such a group.
    kNone,
    // Some workers have come and wait for the others.
    kGoingOn,
    // The group is complete, or was refused.
    kOver,
  };

  State state = State::kNone;
  // kGoingOn: the ranks that have come, in ascending order.
  std::vector<int> arrived;
};

// Reads it from the workers' store. Groups of another size than `world_size` are ignored. Of several groups
// that form at the same time it returns the one to which most workers have come. Takes at most `timeout`.
// Errors: those of the store.
absl::StatusOr<Meeting> read_meeting(store::Store& store, int64_t round, int world_size,
                                     absl::Duration timeout);

// Shows which workers of this node have not come to the job's store yet, while others wait there for them. It
// says nothing about a program whose workers do not meet in the store.
//
// A thread of its own asks the store, for the first time after Options::first: a job whose workers meet at
// once is asked about once. Use the other methods on one thread. The destructor waits for the call
// in progress: for a few seconds if the store does not answer.
class ArrivalWatch {
 public:
  struct Worker {
    int rank = 0;
    int local_rank = 0;
    int64_t pid = 0;
  };
  struct Options {
    // Opens the workers' store within the timeout.
    std::function<absl::StatusOr<std::shared_ptr<store::Store>>(absl::Duration timeout)> open;
    int64_t round = 0;
    int world_size = 1;
    // Those of this node.
    std::vector<Worker> workers;
    Progress::Target progress = {};
    // When the store is asked first; the interval while workers wait there, and the largest one while none
    // has come.
    absl::Duration first = absl::Seconds(5);
    absl::Duration interval = absl::Seconds(5);
    absl::Duration longest = absl::Minutes(1);
    // Limits one call to the store.
    absl::Duration timeout = absl::Seconds(1);
  };

  explicit ArrivalWatch(Options options);
  ~ArrivalWatch();
  ArrivalWatch(const ArrivalWatch&) = delete;
  ArrivalWatch& operator=(const ArrivalWatch&) = delete;

  // Prints the state if that is due.
  void show();
  // The time until show() prints again; infinite if it never does.
  absl::Duration until_next() const;

 private:
  void run();
  // Asks the store. Returns whether to ask again.
  bool ask(std::shared_ptr<store::Store>& store);
  std::optional<ProgressState> state() const;

  const Options options_;
  // Only for the thread of show().
  Progress progress_;

  mutable Mutex mutex_;
  CondVar changed_;
  Meeting meeting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // Last member: the thread uses the others.
};

}  // namespace gradwire::tools
