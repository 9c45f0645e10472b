#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/flight/call_report.h"

namespace gradwire::rpc {

// The calls of one agent that wait for room in a flow window, for reports. A call is added only if the window
// to its callee is full. Thread-safe.
class CreditWaits {
 public:
  // A call is in the table while the object lives.
  class Scope {
   public:
    Scope(CreditWaits& waits, CallReport call) : waits_(waits), number_(call.identity.number) {
      MutexLock lock(waits_.mutex_);
      waits_.calls_.insert_or_assign(number_, std::move(call));
    }
    ~Scope() {
      MutexLock lock(waits_.mutex_);
      waits_.calls_.erase(number_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CreditWaits& waits_;
    const uint64_t number_;
  };

  void append_to(std::vector<CallReport>& reports) const {
    MutexLock lock(mutex_);
    for (const auto& [number, call] : calls_) reports.push_back(call);
  }

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, CallReport> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
