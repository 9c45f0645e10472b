#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/metrics/histogram.h"
#include "gradwire/tools/inspect/view/report.h"

namespace gradwire::inspect {

// Collects what a page shows over time, and a single reading does not have: latencies between two readings,
// the lives of the workers, restarts of the job, and backward passes that were seen in progress. Its size is
// bounded, whatever the job reports. Pure; not thread-safe.
class History {
 public:
  static constexpr std::size_t kMostSamples = 300;
  static constexpr std::size_t kMostLives = 256;
  static constexpr std::size_t kMostRestarts = 64;
  static constexpr std::size_t kMostPasses = 32;

  // The calls of all workers between two readings.
  struct Sample {
    absl::Time time;
    // Calls that ended, and the times that half and 99 % of them did not exceed, within a factor of two.
    uint64_t calls = 0;
    absl::Duration p50;
    absl::Duration p99;
    // Per second, over all workers.
    double calls_made = 0;
    double bytes_sent = 0;
  };
  // One incarnation of a worker.
  struct Life {
    std::string name;
    absl::Time began;
    // InfiniteFuture() while it is a member.
    absl::Time ended = absl::InfiniteFuture();
    // How it ended: "dead", "left", "restart" (its whole group was replaced), or "gone".
    std::string how;
  };
  // A backward pass that at least one reading has seen in progress.
  struct Pass {
    std::string root;
    uint64_t number = 0;
    absl::Time began;
    // The longest time that a part has reported.
    absl::Duration took;
    bool in_progress = true;
    // The workers that had a part in it.
    std::vector<std::string> workers;
  };

  // Takes in a reading. Readings come in the order of their times.
  void add(const Report& report);

  const std::deque<Sample>& samples() const { return samples_; }
  // In the order in which the workers were first seen.
  std::vector<Life> lives() const;
  // When the job was seen with a new group of workers.
  const std::deque<absl::Time>& restarts() const { return restarts_; }
  // The newest one last.
  std::vector<Pass> passes() const;

 private:
  using Buckets = std::array<uint64_t, metrics::kBuckets>;

  void add_sample(const Report& report);
  void add_lives(const JobView& job);
  void add_passes(const JobView& job);

  std::deque<Sample> samples_;
  // By incarnation, at the last reading.
  std::map<uint64_t, Buckets> buckets_;
  std::deque<std::pair<uint64_t, Life>> lives_;
  std::string group_;
  std::deque<absl::Time> restarts_;
  std::deque<std::pair<std::pair<uint64_t, uint64_t>, Pass>> passes_;
};

}  // namespace gradwire::inspect
