#include "gradwire/tools/bench/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire::bench {
namespace {

Figure cpu_per_call(const std::vector<Round>& rounds) {
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
  return median_figure("cpu_us_per_call", std::move(values));
}

// Returns a percentile over the samples of all rounds; no figure if there are fewer than `min_samples`.
void add_tail(std::vector<Figure>& figures, const char* metric, double q, std::size_t min_samples,
              const std::vector<std::vector<float>>& rounds) {
  std::vector<float> all;
  bool enough = true;
  for (const std::vector<float>& samples : rounds) {
    all.insert(all.end(), samples.begin(), samples.end());
    enough = enough && samples.size() >= min_samples;
  }
  if (all.size() < min_samples) return;
  Figure figure{metric, percentile(std::move(all), q)};
  for (const std::vector<float>& samples : rounds) {
    if (enough) figure.rounds.push_back(percentile(samples, q));
  }
  figures.push_back(std::move(figure));
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

Figure median_figure(std::string metric, std::vector<double> rounds) {
  const double value = median(rounds);
  return {std::move(metric), value, std::move(rounds)};
}

bool higher_is_better(absl::string_view metric) {
  return metric == "calls_per_s" || metric == "steps_per_s" || metric == "items_per_s" ||
         metric == "GB_per_s";
}

double improvement(absl::string_view metric, double ours, double theirs) {
  if (ours <= 0 || theirs <= 0) return 0;
  return higher_is_better(metric) ? ours / theirs : theirs / ours;
}

std::vector<Figure> latency_figures(const std::vector<Round>& rounds, int64_t bytes_per_call) {
  std::vector<double> medians;
  std::vector<std::vector<float>> all;
  for (const Round& round : rounds) {
    std::vector<float> samples;
    for (const Measurement& member : round.members) {
      samples.insert(samples.end(), member.micros.begin(), member.micros.end());
    }
    if (samples.empty()) continue;
    medians.push_back(percentile(samples, 0.5));
    all.push_back(std::move(samples));
  }
  if (all.empty()) return {};
  std::vector<double> speeds;
  for (const double p50 : medians) {
    if (p50 > 0) speeds.push_back(static_cast<double>(bytes_per_call) / (p50 * 1000));
  }
  std::vector<Figure> figures = {median_figure("p50_us", std::move(medians))};
  const double p50 = figures[0].value;
  add_tail(figures, "p99_us", 0.99, 100, all);
  add_tail(figures, "p999_us", 0.999, 1000, all);
  if (bytes_per_call > 0 && p50 > 0) {
    figures.push_back({"GB_per_s", static_cast<double>(bytes_per_call) / (p50 * 1000), std::move(speeds)});
  }
  figures.push_back(cpu_per_call(rounds));
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
  return {median_figure("calls_per_s", std::move(rates)), cpu_per_call(rounds)};
}

Figure span_figure(const std::vector<Round>& rounds) {
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
  return median_figure("first_contact_ms", std::move(spans));
}

std::vector<Figure> own_figures(const std::vector<Round>& rounds) {
  struct Values {
    std::string metric;
    std::vector<std::vector<double>> by_round;
  };
  std::vector<Values> metrics;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    for (const Measurement& member : rounds[i].members) {
      for (const Figure& own : member.figures) {
        auto found = std::find_if(metrics.begin(), metrics.end(),
                                  [&](const Values& values) { return values.metric == own.metric; });
        if (found == metrics.end()) found = metrics.insert(found, {own.metric, {}});
        found->by_round.resize(rounds.size());
        found->by_round[i].push_back(own.value);
      }
    }
  }
  std::vector<Figure> result;
  for (const Values& values : metrics) {
    Figure figure{values.metric};
    std::vector<double> all;
    for (const std::vector<double>& round : values.by_round) {
      all.insert(all.end(), round.begin(), round.end());
      if (!round.empty()) figure.rounds.push_back(median(round));
    }
    figure.value = median(std::move(all));
    result.push_back(std::move(figure));
  }
  return result;
}

double figure(const std::vector<Figure>& figures, absl::string_view metric) {
  for (const Figure& candidate : figures) {
    if (candidate.metric == metric) return candidate.value;
  }
  return 0;
}

}  // namespace gradwire::bench
