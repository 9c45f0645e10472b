#include "gradwire/base/polling/arrival_forecast.h"

#include <algorithm>

namespace gradwire {
namespace {

// Number of intervals from which on a source can be regular.
constexpr std::size_t kMinIntervals = 4;
// The intervals of a regular source are at most this long. They differ by at most a twentieth of their length
// within these bounds: the shorter one is about the noise of a virtual machine, the longer one bounds what
// polling for one message may cost.
constexpr int64_t kMaxInterval = 50'000'000;
constexpr int64_t kSpreadShare = 20;
constexpr int64_t kMinSpread = 60'000;
constexpr int64_t kMaxSpread = 300'000;
// A window is longer than the spread of the intervals by this at each end.
constexpr int64_t kSlack = 5'000;

}  // namespace

void ArrivalForecast::record(uint64_t source, int64_t now) {
  Source& found = find(source);
  if (found.arrivals > 0) {
    found.intervals[(found.arrivals - 1) % kIntervals] = now - found.last;
    learn(found);
  }
  ++found.arrivals;
  found.last = now;
}

std::optional<ArrivalForecast::Window> ArrivalForecast::next(int64_t now) const {
  std::optional<Window> next;
  for (const Source& source : sources_) {
    if (source.latest == 0 || source.last + source.latest <= now) continue;
    const Window window = {source.last + source.earliest, source.last + source.latest};
    if (!next.has_value() || window.begin < next->begin) next = window;
  }
  return next;
}

// A disturbed call makes one or two intervals longer or shorter than the others. So with all eight intervals
// known, one at each end does not count.
void ArrivalForecast::learn(Source& source) {
  const std::size_t known = std::min(source.arrivals, kIntervals);
  source.latest = 0;
  if (known < kMinIntervals) return;
  std::array<int64_t, kIntervals> sorted = source.intervals;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(known));
  const std::size_t outliers = known == kIntervals ? 1 : 0;
  const int64_t shortest = sorted[outliers];
  const int64_t longest = sorted[known - 1 - outliers];
  if (longest > kMaxInterval) return;
  if (longest - shortest > std::clamp(shortest / kSpreadShare, kMinSpread, kMaxSpread)) return;
  source.earliest = shortest - kSlack;
  source.latest = longest + kSlack;
}

// A new source replaces the one that has been silent for longest.
ArrivalForecast::Source& ArrivalForecast::find(uint64_t id) {
  for (Source& source : sources_) {
    if (source.arrivals > 0 && source.id == id) return source;
  }
  Source& oldest = *std::min_element(sources_.begin(), sources_.end(),
                                     [](const Source& a, const Source& b) { return a.last < b.last; });
  oldest = Source{.id = id};
  return oldest;
}

}  // namespace gradwire
