#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace gradwire::store {

// The times of the last calls to a store, and the calls that are open, for observers of a worker. Only for
// calls that do not wait for a key. Thread-safe.
class StoreTimes {
 public:
  // The number of calls that are kept.
  static constexpr std::size_t kKept = 32;
  // Earlier calls say nothing about the store of today.
  static constexpr absl::Duration kRecent = absl::Minutes(1);

  // A call begins. Returns its number for end(). `operation`: a literal.
  uint64_t begin(const char* operation, absl::Time now);
  void end(uint64_t call, absl::Time now);

  // Sets the description of the store, for people.
  void set_store(std::string description);

  struct View {
    // Empty before set_store().
    std::string store;
    // The calls that are kept and have ended in the last kRecent, their mean time, and the slowest one.
    std::size_t calls = 0;
    absl::Duration mean;
    absl::Duration slowest;
    std::string slowest_operation;
    // The time since the oldest open call began, and its operation; empty if no call is open.
    absl::Duration open;
    std::string open_operation;
  };
  View view(absl::Time now) const;

 private:
  struct Call {
    const char* operation;
    absl::Time began;
    absl::Duration took;
  };

  mutable Mutex mutex_;
  std::string store_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  // By number, so the oldest one is the first.
  std::map<uint64_t, Call> open_ ABSL_GUARDED_BY(mutex_);
  std::deque<Call> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::store
