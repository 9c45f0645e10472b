#include "gradwire/tools/bench/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire::bench {
namespace {

double cpu_per_call(const std::vector<Round>& rounds) {
  std::vector<double> values;
  for (const Round& round : rounds) {
    double cpu_us = round.cpu_us;
    int64_t calls = 0;
    for (const Measurement& member : round.members) {
      cpu_us -= member.own_cpu_us;
      calls += member.calls;
    }
    if (calls > 0) values.push_back(std::max(0.0, cpu_us) / static_cast<double>(calls));
  }
  return median(std::move(values));
}

}  // namespace

double percentile(std::vector<float> samples, double q) {
  if (samples.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(samples.size())));
  const auto nth =
      samples.begin() + static_cast<std::ptrdiff_t>(std::min(rank == 0 ? 0 : rank - 1, samples.size() - 1));
  std::nth_element(samples.begin(), nth, samples.end());
  return *nth;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

bool higher_is_better(absl::string_view metric) { return metric == "calls_per_s" || metric == "GB_per_s"; }

double improvement(absl::string_view metric, double ours, double theirs) {
  if (ours <= 0 || theirs <= 0) return 0;
  return higher_is_better(metric) ? ours / theirs : theirs / ours;
}

std::vector<Figure> latency_figures(const std::vector<Round>& rounds, int64_t bytes_per_call) {
  std::vector<double> medians;
  std::vector<float> all;
  for (const Round& round : rounds) {
    std::vector<float> samples;
    for (const Measurement& member : round.members) {
      samples.insert(samples.end(), member.micros.begin(), member.micros.end());
    }
    if (samples.empty()) continue;
    all.insert(all.end(), samples.begin(), samples.end());
    medians.push_back(percentile(std::move(samples), 0.5));
  }
  if (all.empty()) return {};
  const double p50 = median(std::move(medians));
  std::vector<Figure> figures = {{"p50_us", p50}};
  if (all.size() >= 100) figures.push_back({"p99_us", percentile(all, 0.99)});
  if (all.size() >= 1000) figures.push_back({"p999_us", percentile(all, 0.999)});
  if (bytes_per_call > 0 && p50 > 0) {
    figures.push_back({"GB_per_s", static_cast<double>(bytes_per_call) / (p50 * 1000)});
  }
  figures.push_back({"cpu_us_per_call", cpu_per_call(rounds)});
  return figures;
}

std::vector<Figure> rate_figures(const std::vector<Round>& rounds) {
  std::vector<double> rates;
  for (const Round& round : rounds) {
    double rate = 0;
    for (const Measurement& member : round.members) {
      if (member.seconds > 0) rate += static_cast<double>(member.timed_calls) / member.seconds;
    }
    rates.push_back(rate);
  }
  if (rates.empty()) return {};
  return {{"calls_per_s", median(std::move(rates))}, {"cpu_us_per_call", cpu_per_call(rounds)}};
}

double span_ms(const std::vector<Round>& rounds) {
  std::vector<double> spans;
  for (const Round& round : rounds) {
    if (round.members.empty()) continue;
    int64_t begin = round.members.front().begin_ns;
    int64_t end = round.members.front().end_ns;
    for (const Measurement& member : round.members) {
      begin = std::min(begin, member.begin_ns);
      end = std::max(end, member.end_ns);
    }
    spans.push_back(static_cast<double>(end - begin) / 1e6);
  }
  return median(std::move(spans));
}

std::vector<Figure> own_figures(const std::vector<Round>& rounds) {
  std::vector<std::pair<std::string, std::vector<double>>> values;
  for (const Round& round : rounds) {
    for (const Measurement& member : round.members) {
      for (const Figure& own : member.figures) {
        auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& entry) { return entry.first == own.metric; });
        if (found == values.end()) found = values.insert(values.end(), {own.metric, {}});
        found->second.push_back(own.value);
      }
    }
  }
  std::vector<Figure> result;
  for (auto& [metric, all] : values) result.push_back({metric, median(std::move(all))});
  return result;
}

double figure(const std::vector<Figure>& figures, absl::string_view metric) {
  for (const Figure& candidate : figures) {
    if (candidate.metric == metric) return candidate.value;
  }
  return 0;
}

}  // namespace gradwire::bench
