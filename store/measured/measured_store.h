#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/interface/forwarding_store.h"

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

// Forwards every call to another store, and counts the calls and their times in a registry
// (gradwire_store_calls_total, gradwire_store_call_seconds). Those that do not wait for a key are also in
// `times`. Thread-safe.
class MeasuredStore : public ForwardingStore {
 public:
  MeasuredStore(std::shared_ptr<Store> store, std::shared_ptr<metrics::Registry> registry,
                std::shared_ptr<StoreTimes> times)
      : ForwardingStore(std::move(store)), registry_(std::move(registry)), times_(std::move(times)) {
    times_->set_store(description());
  }

 protected:
  GRADWIRE_STORE_OPERATIONS_;

 private:
  // Makes a call that waits for a key, or one that does not.
  template <class Call>
  auto measured_wait(const char* operation, const Call& call) -> decltype(call());
  template <class Call>
  auto measured(const char* operation, const Call& call) -> decltype(call());

  const std::shared_ptr<metrics::Registry> registry_;
  const std::shared_ptr<StoreTimes> times_;
};

}  // namespace gradwire::store
