#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/process_identity.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives::nccl {

// An operation on a device that GroupWatch observes.
class WatchedWork {
 public:
  virtual ~WatchedWork() = default;
  // Asks the device whether the operation has ended; does not block. After it has returned true, fail() has
  // no effect.
  virtual bool done() = 0;
  // After done() has returned true: the error of the device that has ended the operation; OK if it ended in
  // another way, also by fail().
  virtual absl::Status device_error() = 0;
  // Ends the operation with this error, if it has not ended before.
  virtual void fail(const absl::Status& reason) = 0;
};

// Observes the health of one member's group: the deadlines of the operations under way, errors of the
// communicators, and processes that have ended, left the group or reported a failure. NCCL itself detects
// little of that: a kernel that waits for a dead peer waits indefinitely.
//
// States: healthy; after fail(), failed with the first reason, which does not change any more. The other
// members learn the reason through the store.
//
// Keys in the group's store: process/RANK (the process of the rank), failed (the Status of the first
// failure), progress/RANK (the number of collectives that the rank has begun), left/RANK (the same number,
// written when the rank leaves). Thread-safe; holds no lock while it calls functions of others.
class GroupWatch {
 public:
  struct Options {
    std::string group;
    int rank = 0;
    // The number of each rank in messages.
    std::vector<int> ranks;
    std::shared_ptr<store::Store> store;
    Clock* clock = &Clock::system();
    ProcessIdentity process;
    // Returns the error that the communicators report; OK if they report none.
    std::function<absl::Status()> check;
    // Ends the communicators. Called once, on the thread that fails the group.
    std::function<void(const absl::Status&)> abort;
    // Called after work has been added: poll() should be called soon.
    std::function<void()> wake;
  };
  // One operation under way.
  struct Entry {
    std::shared_ptr<WatchedWork> work;
    // The operation's name, for example "all_reduce".
    std::string what;
    // The number from begin(); 0 for an operation that is not a collective.
    uint64_t number = 0;
    // The index in `ranks` of the only other rank that the operation needs; -1: it needs all ranks.
    int peer = -1;
    absl::Time deadline = absl::InfiniteFuture();
  };

  explicit GroupWatch(Options options);

  // Counts a collective that begins, and returns its number; numbers start at 1.
  uint64_t begin();
  // Observes an operation until it has ended. If the group has failed, the operation fails at once.
  void add(Entry entry);

  // OK while the group is healthy; afterwards Aborted with the first reason.
  absl::Status failure() const;
  // Fails the operations under way with `reason`, ends the communicators, and notifies the other members.
  // Only the first call has an effect.
  void fail(const absl::Status& reason) { fail_with(reason, /*notify=*/true); }
  // Notifies the other members that this rank leaves. poll() checks nothing afterwards.
  void leave();

  // Checks everything once. Called by one thread at a time. Returns the time after which it must be called
  // again.
  absl::Duration poll();

 private:
  // `notify`: also writes the failure to the store.
  void fail_with(const absl::Status& reason, bool notify);
  std::string describe(const Entry& entry) const;
  // The next five return an error if the group must fail.
  // Checks deadlines, and from time to time the processes of the other ranks.
  absl::Status check_work(const std::vector<Entry>& open, absl::Time now);
  // Reads failures and departures of other ranks, and writes this rank's progress.
  absl::Status check_store(const std::vector<Entry>& open);
  // Finds a rank whose process has ended and that an operation under way needs.
  absl::Status check_processes(const std::vector<Entry>& open);
  // Finds a rank that has left and that an operation under way needs.
  absl::Status check_departures(const std::vector<Entry>& open);
  // Makes the error for an operation that did not end in time.
  absl::Status expired(const Entry& entry);
  // Writes this rank's process to the store, once.
  void publish_process();
  // Reads the processes of ranks that are not known yet.
  void read_processes();

  const Options options_;

  // Used only by poll().
  absl::Time next_store_check_ = absl::InfinitePast();
  // The last progress that was written to the store.
  uint64_t published_ = 0;
  bool process_published_ = false;
  // The process of each rank, after it was read.
  std::vector<std::optional<ProcessIdentity>> processes_;

  mutable Mutex mutex_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether an operation has begun. A group that has nccl together with cpu may never use nccl; then it does
  // not poll the store.
  bool used_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::nccl
