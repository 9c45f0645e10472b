#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The metrics of Gradwire. docs/metrics.md is generated from this table.
namespace gradwire::metrics {

enum class Kind : uint8_t { kCounter, kGauge, kHistogram };
absl::string_view name_of(Kind kind);

// One family of metrics: series that differ in the values of their labels.
struct Family {
  static constexpr std::size_t kMostLabels = 3;

  absl::string_view name;
  Kind kind = Kind::kCounter;
  // "seconds", "bytes", or what is counted.
  absl::string_view unit;
  // The names of the labels. The rest is empty.
  std::array<absl::string_view, kMostLabels> labels;
  absl::string_view help;

  std::size_t label_count() const;
};

// The families, in the order of the text. Each has a row in families.cc, in the same order.
enum class Metric : uint8_t {
  kAgentInfo,
  // Calls that an agent makes.
  kCallsMade,
  kCallSeconds,
  kCallsRepeated,
  kLateAnswers,
  kPendingCalls,
  kFlowWaitSeconds,
  // Calls that it serves.
  kCallsServed,
  kQueueSeconds,
  kServiceSeconds,
  kCallsDenied,
  kServedCalls,
  // Its connections, references, threads and memory.
  kBytesSent,
  kBytesReceived,
  kLinks,
  kWorkers,
  kRRefsOwned,
  kRRefsHeld,
  kTableEntries,
  kPoolThreads,
  kPoolTasks,
  kArenaBytes,
  kShmBytes,
  kShmDoorbells,
  kBufferPoolBytes,
  // Distributed autograd.
  kContexts,
  kPasses,
  kPassSeconds,
  kRememberedPasses,
  kCleanupsUnderWay,
  kLateMessages,
  kUnjoinedGradients,
  kStepWaiters,
  // Process groups.
  kCollectives,
  kCollectiveBytes,
  kCollectiveSeconds,
  // The store of an agent.
  kStoreCalls,
  kStoreCallSeconds,
  // The launcher.
  kLaunchRestarts,
  kLaunchRounds,
  kLaunchWorkers,
  kLaunchScrapeFailures,
  // The metrics themselves.
  kSeries,
  kOtlpExports,
  kOtlpRejectedPoints,
  kCount,
};
inline constexpr std::size_t kMetrics = static_cast<std::size_t>(Metric::kCount);

const Family& family_of(Metric metric);
// All families, in the order of Metric.
absl::Span<const Family> all_families();

}  // namespace gradwire::metrics
