#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/bench/report/report.h"

// Compares two runs of the benchmark (--against).
namespace gradwire::bench {

enum class Change : uint8_t { kUnchanged, kSlower, kFaster, kTooFewRounds };

// How a figure of a later run compares with the same figure of an earlier run.
struct RoundsComparison {
  Change change = Change::kUnchanged;
  // How many times better the later median is, and the bounds of its 95 % interval. Below 1: worse.
  double times_better = 0;
  double low = 0;
  double high = 0;
};

// Compares the values that a metric had in the rounds of two runs. The interval comes from a bootstrap with a
// fixed seed: 2000 times it draws as many rounds as there were from each run, with replacement, and compares
// their medians. A change is significant if the whole interval is on one side of 1 and the medians differ by
// at least 3 %. Needs at least 3 rounds in both runs, and only positive values; else kTooFewRounds.
RoundsComparison compare_rounds(absl::string_view metric, const std::vector<double>& earlier,
                                const std::vector<double>& later);

// The contents of a file that --json wrote.
struct EarlierRun {
  std::string processor;
  // Only Gradwire's figures, one row for each.
  std::vector<Row> rows;
};

// InvalidArgument with the number of the line if a line is not an object that --json writes, or if the first
// line does not describe the machine.
absl::StatusOr<EarlierRun> parse_earlier_run(absl::string_view text);

struct RunComparison {
  // A line for each significant change, then the numbers of slower, faster and unchanged figures.
  std::string text;
  int slower = 0;
};

// Compares each figure of Gradwire that both runs have.
RunComparison compare_runs(const EarlierRun& earlier, const std::string& processor,
                           const std::vector<Row>& later);

}  // namespace gradwire::bench
