#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace gradwire {

// Learns at what intervals messages arrive from each of a few sources, and forecasts the next arrival. A
// source is regular if most of its last intervals have about the same length. Times are nanoseconds of one
// monotonic clock. Pure, not thread-safe.
class ArrivalForecast {
 public:
  // The time in which an arrival is expected.
  struct Window {
    int64_t begin;
    int64_t end;
  };

  // A message from `source` arrived after a silence. Follow-up messages of a burst must not be recorded.
  void record(uint64_t source, int64_t now);

  // Returns the window that begins first among those that have not ended. Nothing if no source is regular.
  std::optional<Window> next(int64_t now) const;

 private:
  static constexpr std::size_t kSources = 8;
  static constexpr std::size_t kIntervals = 8;

  struct Source {
    uint64_t id = 0;
    int64_t last = 0;
    // Number of recorded arrivals; the first one begins the first interval.
    std::size_t arrivals = 0;
    // The last intervals, in the order of a ring.
    std::array<int64_t, kIntervals> intervals = {};
    // The expected interval; `latest` is 0 if the source is not regular.
    int64_t earliest = 0;
    int64_t latest = 0;
  };
  static void learn(Source& source);
  Source& find(uint64_t id);

  std::array<Source, kSources> sources_;
};

}  // namespace gradwire
