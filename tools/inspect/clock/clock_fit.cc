#include "gradwire/tools/inspect/clock/clock_fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace gradwire::inspect {
namespace {

// More samples of one pair of workers hardly improve the fit, whose time grows with their number.
constexpr std::size_t kMostSamples = 2000;
// Quartz clocks of computers drift by less than 200 millionths against each other.
constexpr double kLargestDrift = 500e-6;
// Doubles have 53 bits: times within about a month keep a precision of a nanosecond.
constexpr int64_t kLongestPeriod = int64_t{30} * 24 * 3600 * 1'000'000'000;
// The searches below end when the drift is known to about this part of kLargestDrift.
constexpr int kSteps = 80;

// A bound of the callee's lead over the caller's clock at one time of the caller. Relative to the first
// sample.
struct Bound {
  double time = 0;
  double lead = 0;
};

// All bounds, as functions of the drift: for each drift the lead at time 0 has a lowest and a highest value.
// highest() is concave as the least of linear functions, and lowest() is convex.
class Bounds {
 public:
  void add_upper(Bound bound) { upper_.push_back(bound); }
  void add_lower(Bound bound) { lower_.push_back(bound); }

  // The highest lead at `time` of all lines with this drift that are below the upper bounds.
  double highest(double drift, double time = 0) const {
    double best = std::numeric_limits<double>::infinity();
    for (const Bound& bound : upper_) best = std::min(best, bound.lead + drift * (time - bound.time));
    return best;
  }
  double lowest(double drift, double time = 0) const {
    double best = -std::numeric_limits<double>::infinity();
    for (const Bound& bound : lower_) best = std::max(best, bound.lead + drift * (time - bound.time));
    return best;
  }
  // How far apart the bounds are. Negative: no line of this drift keeps all of them.
  double gap(double drift) const { return highest(drift) - lowest(drift); }

 private:
  std::vector<Bound> upper_;
  std::vector<Bound> lower_;
};

// The drift in [low, high] with the largest value of a concave function.
template <typename Function>
double largest(double low, double high, const Function& function) {
  for (int step = 0; step < kSteps; ++step) {
    const double third = (high - low) / 3;
    if (function(low + third) < function(high - third)) {
      low += third;
    } else {
      high -= third;
    }
  }
  return (low + high) / 2;
}

// The drift between `inside`, where lines keep all bounds, and `outside`, from which on none does.
double edge(const Bounds& bounds, double inside, double outside) {
  if (bounds.gap(outside) >= 0) return outside;
  for (int step = 0; step < kSteps; ++step) {
    const double middle = (inside + outside) / 2;
    (bounds.gap(middle) >= 0 ? inside : outside) = middle;
  }
  return inside;
}

// The difference of two times that other processes may have made up.
int64_t difference(int64_t time, int64_t origin) {
  int64_t result = 0;
  if (!__builtin_sub_overflow(time, origin, &result)) return result;
  return time < origin ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
}

bool within(int64_t time, int64_t origin) {
  const int64_t since = difference(time, origin);
  return since >= -kLongestPeriod && since <= kLongestPeriod;
}

// The fastest calls have the closest bounds. Those of all parts of the trace show the drift.
std::vector<ClockSample> best_of(std::vector<ClockSample> samples) {
  if (samples.size() <= kMostSamples) return samples;
  std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.sent < b.sent; });
  const auto on_the_way = [](const ClockSample& sample) {
    return static_cast<double>(sample.received) - static_cast<double>(sample.sent) -
           (static_cast<double>(sample.answered) - static_cast<double>(sample.arrived));
  };
  std::vector<ClockSample> best;
  for (std::size_t part = 0; part < kMostSamples; ++part) {
    const std::size_t begin = samples.size() * part / kMostSamples;
    const std::size_t end = samples.size() * (part + 1) / kMostSamples;
    best.push_back(
        *std::min_element(samples.begin() + static_cast<std::ptrdiff_t>(begin),
                          samples.begin() + static_cast<std::ptrdiff_t>(end),
                          [&](const auto& a, const auto& b) { return on_the_way(a) < on_the_way(b); }));
  }
  return best;
}

}  // namespace

int64_t ClockFit::lead(int64_t time) const {
  constexpr double kMost = 9e18;  // Below 2^63.
  const auto since = static_cast<double>(difference(time, origin_));
  return std::llround(std::clamp(offset_ + drift_ * since, -kMost, kMost));
}

int64_t ClockFit::map(int64_t time) const {
  int64_t mapped = 0;
  if (!__builtin_add_overflow(time, lead(time), &mapped)) return mapped;
  return time < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
}

ClockFit ClockFit::inverse() const { return {map(origin_), -offset_, -drift_ / (1 + drift_), error_}; }

ClockFit ClockFit::then(const ClockFit& next) const {
  const int64_t middle = map(origin_);
  const double drift = drift_ + next.drift_ + drift_ * next.drift_;
  const auto further = static_cast<double>(difference(next.map(middle), middle));
  return {origin_, offset_ + further, drift, error_ + next.error_};
}

// 1. Find the drift for which the bounds are the farthest apart, and the line in their middle.
// 2. Find the drifts for which lines exist at all.
// 3. At both ends of the period, find the highest and the lowest of these lines. The farther one is the
// error.
std::optional<ClockFit> fit_clocks(const std::vector<ClockSample>& all) {
  if (all.empty()) return std::nullopt;
  const std::vector<ClockSample> samples = best_of(all);
  const ClockSample& first = samples.front();
  Bounds bounds;
  double begin = 0;
  double end = 0;
  for (const ClockSample& sample : samples) {
    if (!within(sample.sent, first.sent) || !within(sample.received, first.sent) ||
        !within(sample.arrived, first.arrived) || !within(sample.answered, first.arrived)) {
      return std::nullopt;
    }
    const double sent = static_cast<double>(sample.sent - first.sent);
    const double received = static_cast<double>(sample.received - first.sent);
    bounds.add_upper({sent, static_cast<double>(sample.arrived - first.arrived) - sent});
    bounds.add_lower({received, static_cast<double>(sample.answered - first.arrived) - received});
    begin = std::min({begin, sent, received});
    end = std::max({end, sent, received});
  }

  const double drift = largest(-kLargestDrift, kLargestDrift, [&](double d) { return bounds.gap(d); });
  if (bounds.gap(drift) < 0) return std::nullopt;
  const double lead = (bounds.highest(drift) + bounds.lowest(drift)) / 2;

  const double slow = edge(bounds, drift, -kLargestDrift);
  const double fast = edge(bounds, drift, kLargestDrift);
  double error = 0;
  for (const double time : {begin, end}) {
    const double fitted = lead + drift * time;
    const auto highest = [&](double d) { return bounds.highest(d, time); };
    const auto depth = [&](double d) { return -bounds.lowest(d, time); };
    error = std::max(
        {error, highest(largest(slow, fast, highest)) - fitted, fitted + depth(largest(slow, fast, depth))});
  }

  const auto offset = static_cast<double>(difference(first.arrived, first.sent));
  return ClockFit(first.sent, offset + lead, drift, error);
}

}  // namespace gradwire::inspect
