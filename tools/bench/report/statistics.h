#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// Computes figures from measurements. Nothing in this file measures.
namespace gradwire::bench {

struct Figure {
  std::string metric;
  double value = 0;
  // The values from which `value` was computed, one for each round. Empty if it was not computed so.
  std::vector<double> rounds = {};
};

// The measurement of one member of one system in one round.
struct Measurement {
  // Duration of each timed call in microseconds.
  std::vector<float> micros;
  // Number of all calls, including the warm-up. The processor time is divided by it.
  int64_t calls = 0;
  // Number of timed calls, and their total duration.
  int64_t timed_calls = 0;
  double seconds = 0;
  // Begin and end of the timed part (CLOCK_MONOTONIC, which all members of a system share).
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // Processor time that the bench itself spent on filling, checking and computing between calls, in
  // microseconds.
  double own_cpu_us = 0;
  // Figures that the member computed itself, in cases that have figures other than latency and rate.
  std::vector<Figure> figures;
};

// Returns the smallest sample that at least the fraction `q` (0 to 1) of the samples do not exceed (nearest
// rank). 0 without samples.
double percentile(std::vector<float> samples, double q);
double median(std::vector<double> values);

// Returns a figure with these values of the rounds, and with their median.
Figure median_figure(std::string metric, std::vector<double> rounds);

// True for calls_per_s, steps_per_s and GB_per_s. For all other metrics less is better.
bool higher_is_better(absl::string_view metric);
// Returns how many times better `ours` is than `theirs`; 0 if one of them is not positive.
double improvement(absl::string_view metric, double ours, double theirs);

// One round of one system: the measurements of the calling members, and the processor time of all members.
struct Round {
  std::vector<Measurement> members;
  double cpu_us = 0;
};

// Returns these figures:
// - p50_us: the median of the rounds' medians, so that one disturbed round does not decide;
// - p99_us and p999_us: over all samples, because tails consist of disturbances. Left out with fewer than
//   100 or 1000 samples, which would make them the maximum. Figure::rounds is empty if this holds for a
//   round;
// - GB_per_s at p50, if `bytes_per_call` is not 0;
// - cpu_us_per_call.
std::vector<Figure> latency_figures(const std::vector<Round>& rounds, int64_t bytes_per_call);
// Returns calls_per_s (the median over the rounds of the sum over the members) and cpu_us_per_call.
std::vector<Figure> rate_figures(const std::vector<Round>& rounds);
// Returns first_contact_ms, the time from the first member's start to the last member's end.
Figure span_figure(const std::vector<Round>& rounds);

// Returns the figures that the members computed themselves. The value of a metric is the median over all
// members and rounds. The order is that of the first occurrence.
std::vector<Figure> own_figures(const std::vector<Round>& rounds);

// Returns the value of one metric; 0 if `figures` does not contain it.
double figure(const std::vector<Figure>& figures, absl::string_view metric);

}  // namespace gradwire::bench
