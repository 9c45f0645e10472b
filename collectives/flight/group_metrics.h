#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/base/metrics/counter.h"
#include "gradwire/base/metrics/histogram.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/flight/operation.h"

namespace gradwire::collectives {

// Counts the operations of one member of a group. All members in the process together are a part of the text
// of each agent of the process (metrics::register_process_collector). Counting takes no lock. Memory is
// allocated when an operation of a kind ends for the first time. Thread-safe.
class GroupMetrics {
 public:
  // Number of kinds of operations.
  static constexpr std::size_t kKinds = static_cast<std::size_t>(Operation::kCoalesced) + 1;

  explicit GroupMetrics(std::string group);
  ~GroupMetrics();
  GroupMetrics(const GroupMetrics&) = delete;
  GroupMetrics& operator=(const GroupMetrics&) = delete;

  // An operation has ended. `took`: in the units of CoarseTime. Single times are wrong by a tick of that
  // clock. Their sum is right, because operations begin at any time between two ticks.
  void ended(const OperationRecord& record, CoarseTime took, bool ok) {
    Counts& counts = counts_of(record.operation);
    counts.seconds.record_ns(took * 1'000'000);
    counts.bytes.add(record.bytes);
    if (!ok) counts.failed.add();
  }

  // The group's operations of one kind.
  struct Totals {
    metrics::HistogramValues seconds;
    uint64_t bytes = 0;
    uint64_t failed = 0;
  };

 private:
  friend class GroupTotals;
  struct Counts {
    metrics::Histogram seconds;
    metrics::Counter bytes;
    metrics::Counter failed;
  };

  Counts& counts_of(Operation operation) {
    Counts* const counts = counts_[static_cast<std::size_t>(operation)].load(std::memory_order_acquire);
    return counts != nullptr ? *counts : make(operation);
  }
  Counts& make(Operation operation);

  const std::string group_;
  std::array<std::atomic<Counts*>, kKinds> counts_{};
};

}  // namespace gradwire::collectives
