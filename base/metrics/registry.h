#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/base/metrics/counter.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/histogram.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/mutex.h"

namespace gradwire::metrics {

// The metrics of one owner, for example of an agent. A metric is found by its labels once; the code that
// counts keeps the reference, which is valid as long as the registry:
//
//   Counter& calls = registry.counter(Metric::kStoreCalls, {"get", "OK"});
//   calls.add();  // A few nanoseconds, without a lock.
//
// The number of series is bounded, because label values may come from other processes. Each label of a
// family has at most `most_values` values, and a family at most `most_series` series. Beyond that the value
// is "other".
//
// Thread-safe.
class Registry {
 public:
  struct Bounds {
    std::size_t most_values = 128;
    std::size_t most_series = 1'024;
  };
  Registry() : Registry(Bounds()) {}
  explicit Registry(const Bounds& bounds) : bounds_(bounds) {}

  using Values = std::initializer_list<absl::string_view>;
  // REQUIRES: the family is of that kind, and `values` has a value for each of its labels.
  Counter& counter(Metric metric, Values values = {});
  Gauge& gauge(Metric metric, Values values = {});
  Histogram& histogram(Metric metric, Values values = {});

  // The histogram of all series of a family together.
  HistogramValues total(Metric metric) const;
  // Number of series of all families.
  std::size_t series() const;
  // Adds all series to `samples`.
  void collect(Samples& samples) const;

 private:
  using Key = std::vector<std::string>;
  struct Series {
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Entry {
    // The values of each label.
    std::array<std::set<std::string>, Family::kMostLabels> values;
    std::map<Key, Series> series;
  };

  Series& find_locked(Metric metric, Values values) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Bounds bounds_;
  mutable Mutex mutex_;
  std::array<Entry, kMetrics> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::metrics
