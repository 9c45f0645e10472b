#pragma once

#include <memory>
#include <utility>

#include "gradwire/base/metrics/registry.h"
#include "gradwire/store/memory/forwarding_store.h"

namespace gradwire::store {

// Forwards every call to another store, and counts the calls and their times in a registry
// (gradwire_store_calls_total, gradwire_store_call_seconds). Thread-safe.
class MeasuredStore : public ForwardingStore {
 public:
  MeasuredStore(std::shared_ptr<Store> store, std::shared_ptr<metrics::Registry> registry)
      : ForwardingStore(std::move(store)), registry_(std::move(registry)) {}

 protected:
  GRADWIRE_STORE_OPERATIONS_;

 private:
  template <class Call>
  auto measured(absl::string_view operation, const Call& call) -> decltype(call());

  const std::shared_ptr<metrics::Registry> registry_;
};

}  // namespace gradwire::store
