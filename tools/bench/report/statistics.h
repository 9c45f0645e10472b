#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// The arithmetic of figures: nothing here measures.
namespace gradwire::bench {

struct Figure {
  std::string metric;
  double value = 0;
};

// What one member of one side brings back from one round.
struct Measurement {
  // One for each timed call, in microseconds.
  std::vector<float> micros;
  // All calls made, those of the warm-up included: what the processor time is divided by.
  int64_t calls = 0;
  // Calls that count for a rate, and how long they took.
  int64_t timed_calls = 0;
  double seconds = 0;
  // Of CLOCK_MONOTONIC, around the timed part: the members of a side share the clock.
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // Processor time that the bench itself spent on filling and checking, in microseconds.
  double own_cpu_us = 0;
  // What the member itself has made of it, in cases that are neither latency nor rate.
  std::vector<Figure> figures;
};

// The value that `q` (0 to 1) of the samples do not exceed, by nearest rank. 0 without samples.
double percentile(std::vector<float> samples, double q);
double median(std::vector<double> values);

// calls_per_s and GB_per_s; for everything else less is better.
bool higher_is_better(absl::string_view metric);
// How many times better `ours` is; 0 when it cannot be said.
double improvement(absl::string_view metric, double ours, double theirs);

// One round of one side: the measurements of its calling members, and the processor time of all members.
struct Round {
  std::vector<Measurement> members;
  double cpu_us = 0;
};

// p50_us (the median of the rounds' medians, so that one disturbed round does not decide), p99_us and
// p999_us (over all samples, since disturbances are what tails are about; left out when fewer than 100 or
// 1000 samples would make them the maximum), GB_per_s at p50 when `bytes_per_call` is not 0, and
// cpu_us_per_call.
std::vector<Figure> latency_figures(const std::vector<Round>& rounds, int64_t bytes_per_call);
// calls_per_s (the sum over members, the median of the rounds) and cpu_us_per_call.
std::vector<Figure> rate_figures(const std::vector<Round>& rounds);
// From the first member's start to the last one's end; the median of the rounds, in milliseconds.
double span_ms(const std::vector<Round>& rounds);

// The members' own figures: of each metric the median over all members and rounds, in the order in which they
// came.
std::vector<Figure> own_figures(const std::vector<Round>& rounds);

// The value of one metric, or 0.
double figure(const std::vector<Figure>& figures, absl::string_view metric);

}  // namespace gradwire::bench
