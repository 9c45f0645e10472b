#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace gradwire::inspect {

// A call that both ends have recorded, each by its own clock, in nanoseconds.
struct ClockSample {
  int64_t sent = 0;      // Caller: the request was sent.
  int64_t arrived = 0;   // Callee: the request arrived.
  int64_t answered = 0;  // Callee: the answer was sent.
  int64_t received = 0;  // Caller: the answer arrived.

  // The same bounds, with the clocks in the other order: the answer leaves the callee, and the request is
  // what came back before that.
  ClockSample turned() const { return {answered, received, sent, arrived}; }
};

// A linear map from the times of one clock to those of another, with a bound of its error in the period that
// the samples cover. The map of a clock to itself has no error.
class ClockFit {
 public:
  ClockFit() = default;
  ClockFit(int64_t origin, double offset, double drift, double error)
      : origin_(origin), offset_(offset), drift_(drift), error_(error) {}

  // How far the other clock is ahead at `time`. Nanoseconds.
  int64_t lead(int64_t time) const;
  // The time of the other clock at `time`. Nanoseconds.
  int64_t map(int64_t time) const;
  // The map in the other direction. It has the same error.
  ClockFit inverse() const;
  // First this map, then `next`. The errors add up.
  ClockFit then(const ClockFit& next) const;

  // The largest difference between map(time) and the true time. Nanoseconds.
  double error() const { return error_; }
  // The nanoseconds that the other clock gains in one nanosecond.
  double drift() const { return drift_; }

 private:
  // The time at which the other clock is `offset_` ahead.
  int64_t origin_ = 0;
  double offset_ = 0;
  double drift_ = 0;
  double error_ = 0;
};

// Fits the map from the caller's clock to the callee's. No message arrives before it was sent, so each sample
// bounds the callee's clock from both sides: at `sent` it is at most at `arrived`, and at `received` at least
// at `answered`. The fit is the straight line with the largest distance to all bounds; its error is the
// largest distance to another line that keeps all bounds. Of very many samples it takes the fastest call of
// each part of the period: more hardly improve the fit.
//
// Returns std::nullopt if there is no sample, or no line keeps all bounds: one of the clocks was set
// meanwhile, or a sample is false. The samples may come from other processes: any values are allowed.
std::optional<ClockFit> fit_clocks(const std::vector<ClockSample>& samples);

}  // namespace gradwire::inspect
