#include "gradwire/base/metrics/registry.h"

#include "gradwire/base/metrics/label_table.h"
#include "gradwire/base/text/utf8.h"

namespace gradwire::metrics {
namespace {

// A label's value is cut after this many bytes.
constexpr std::size_t kLongestValue = 200;

template <class T>
T& made(std::unique_ptr<T>& metric) {
  if (metric == nullptr) metric = std::make_unique<T>();
  return *metric;
}

// The value as the text will show it (append_escaped), before escapes. Otherwise two series could become one
// in the text, which readers refuse.
std::string shown(absl::string_view value) {
  value = value.substr(0, kLongestValue);
  std::string text;
  while (!value.empty()) {
    const Utf8Character character = first_character(value);
    if (is_shown(character)) {
      text.append(value.data(), character.size);
    } else {
      text += '?';
    }
    value.remove_prefix(character.size);
  }
  return text;
}

}  // namespace

Registry::Series& Registry::find_locked(Metric metric, Values values) {
  Entry& entry = entries_[static_cast<std::size_t>(metric)];
  Key key;
  std::size_t label = 0;
  for (const absl::string_view value : values) {
    std::set<std::string>& known = entry.values[label++];
    std::string text = shown(value);
    if (known.count(text) == 0) {
      if (known.size() < bounds_.most_values) {
        known.insert(text);
      } else {
        text = std::string(kOther);
      }
    }
    key.push_back(std::move(text));
  }
  auto found = entry.series.find(key);
  if (found != entry.series.end()) return found->second;
  if (entry.series.size() >= bounds_.most_series) {
    // One more series, which takes all that come later.
    for (std::string& value : key) value = std::string(kOther);
  }
  return entry.series[key];
}

Counter& Registry::counter(Metric metric, Values values) {
  MutexLock lock(mutex_);
  return made(find_locked(metric, values).counter);
}

Gauge& Registry::gauge(Metric metric, Values values) {
  MutexLock lock(mutex_);
  return made(find_locked(metric, values).gauge);
}

Histogram& Registry::histogram(Metric metric, Values values) {
  MutexLock lock(mutex_);
  return made(find_locked(metric, values).histogram);
}

HistogramValues Registry::total(Metric metric) const {
  HistogramValues total;
  MutexLock lock(mutex_);
  for (const auto& [key, series] : entries_[static_cast<std::size_t>(metric)].series) {
    if (series.histogram != nullptr) total.add(series.histogram->values());
  }
  return total;
}

std::size_t Registry::series() const {
  std::size_t series = 0;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) series += entry.series.size();
  return series;
}

void Registry::collect(Samples& samples) const {
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < kMetrics; ++i) {
    const auto metric = static_cast<Metric>(i);
    for (const auto& [key, series] : entries_[i].series) {
      const std::vector<absl::string_view> values(key.begin(), key.end());
      if (series.counter != nullptr) samples.add(metric, values, series.counter->value());
      if (series.gauge != nullptr) samples.add(metric, values, static_cast<double>(series.gauge->value()));
      if (series.histogram != nullptr) samples.add(metric, values, series.histogram->values());
    }
  }
}

}  // namespace gradwire::metrics
