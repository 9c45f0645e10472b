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
#include "gradwire/store/store.h"

namespace gradwire::collectives::nccl {

// Something that a device does, or waits for.
class WatchedWork {
 public:
  virtual ~WatchedWork() = default;
  // Asks the device; does not block. What it has said counts, whatever fail() is told later.
  virtual bool done() = 0;
  // It ends here with this error, unless it was done.
  virtual void fail(const absl::Status& reason) = 0;
};

// What one member knows of how its group fares: the work that is under way and until when it may be, who has
// ended, who has given up. Healthy until fail(); then for ever with the first reason, which the others hear
// through the store. NCCL itself notices little of this: a kernel that waits for a dead peer waits for ever.
//
// Keys in the store, which is the group's alone: process/RANK, failed (a status), progress/RANK (how many
// collectives it has begun), left/RANK (the same, when it left). Thread-safe; calls nothing with a lock held.
class GroupWatch {
 public:
  struct Options {
    std::string group;
    int rank = 0;
    // The name of each rank in messages.
    std::vector<int> ranks;
    std::shared_ptr<store::Store> store;
    Clock* clock = &Clock::system();
    ProcessIdentity process;
    // What the communicators say.
    std::function<absl::Status()> check;
    // Ends the communicators; called once, by whoever fails the group first.
    std::function<void(const absl::Status&)> abort;
    // Work has come, and look() should be called soon.
    std::function<void()> wake;
  };
  struct Entry {
    std::shared_ptr<WatchedWork> work;
    // "all_reduce"
    std::string what;
    // begin()'s, or 0 for what is no collective.
    uint64_t number = 0;
    // Index into `ranks` of the only other rank that it needs, or -1: all.
    int peer = -1;
    absl::Time deadline = absl::InfiniteFuture();
  };

  explicit GroupWatch(Options options);

  // The number of a collective that begins here, from 1.
  uint64_t begin();
  void add(Entry entry);

  // OK while the group is healthy; then Aborted with the first reason.
  absl::Status failure() const;
  // Fails what is under way with `reason`, ends the communicators, tells the others. Only the first call does
  // anything.
  void fail(const absl::Status& reason) { fail_with(reason, /*tell=*/true); }
  // Tells the others that this rank takes part no more. Nothing is looked at from now on.
  void leave();

  // One look at everything; by one thread at a time. Returns how long the next may wait.
  absl::Duration look();

 private:
  void fail_with(const absl::Status& reason, bool tell);
  std::string describe(const Entry& entry) const;
  // Work that can never end, or has not in time; OK if there is none.
  absl::Status look_at_work(const std::vector<Entry>& open, absl::Time now);
  absl::Status look_at_store(const std::vector<Entry>& open);
  absl::Status look_who_is_gone(const std::vector<Entry>& open);
  void introduce();
  void look_for_processes();
  absl::Status look_who_left(const std::vector<Entry>& open);
  absl::Status expired(const Entry& entry);

  const Options options_;

  // Of look() alone.
  absl::Time next_store_look_ = absl::InfinitePast();
  uint64_t published_ = 0;
  bool introduced_ = false;
  // Of each rank, once it has said.
  std::vector<std::optional<ProcessIdentity>> processes_;

  mutable Mutex mutex_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // A group beside a cpu backend's may never be: it asks the store for nothing.
  bool used_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::nccl
