#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::data_parallel {

// Chooses the size of the buckets by trial: some passes run with each candidate, and the candidate with the
// fastest pass wins. The time of a pass has noise that only makes it longer, so the fastest pass of each
// candidate counts. The first pass with new buckets is not counted, because it touches their memory for the
// first time.
//
// States: trying (the trial of one candidate after the other); measured (all trials are over); chosen after
// choose(). Not thread-safe.
class CapTuner {
 public:
  // Number of passes with each candidate, the first one included.
  static constexpr int kPasses = 5;
  // Another candidate must be faster than the first one by this part. Otherwise the noise would decide.
  static constexpr double kGain = 0.05;

  // `candidates`: caps in bytes, at least one. The first one is used unless another one is clearly better.
  explicit CapTuner(std::vector<uint64_t> candidates)
      : candidates_(std::move(candidates)),
        fastest_(candidates_.size(), std::numeric_limits<double>::infinity()) {}

  // The cap of the trial under way, or the chosen one.
  uint64_t cap() const { return candidates_[index_]; }
  // Whether a trial is under way.
  bool trying() const { return !chosen_ && !measured(); }
  // Whether all trials are over, and choose() must be called.
  bool measured() const { return !chosen_ && index_ + 1 == candidates_.size() && passes_ == kPasses; }

  // A pass with cap() took this time. REQUIRES: trying()
  void add(absl::Duration time);
  // Begins the trial of the next candidate, if enough passes have run with this one. Returns whether cap()
  // has changed.
  bool advance();

  // For each candidate, the seconds of its fastest pass on this rank.
  const std::vector<double>& fastest() const { return fastest_; }
  // Ends the tuning. `seconds`: for each candidate, the seconds of its fastest pass on the slowest rank. They
  // may come from other processes, so any numbers are accepted.
  void choose(const std::vector<double>& seconds);

 private:
  const std::vector<uint64_t> candidates_;
  std::vector<double> fastest_;
  // The candidate under trial, or the chosen one.
  std::size_t index_ = 0;
  // Number of passes with the candidate under trial.
  int passes_ = 0;
  bool chosen_ = false;
};

}  // namespace gradwire::data_parallel
