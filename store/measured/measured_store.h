#pragma once

#include <memory>
#include <utility>

#include "gradwire/base/metrics/registry.h"
#include "gradwire/store/measured/store_times.h"
#include "gradwire/store/memory/forwarding_store.h"

namespace gradwire::store {

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
