#include "gradwire/tools/bench/report/comparison.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gradwire/tools/bench/report/statistics.h"

namespace gradwire::bench {
namespace {

constexpr std::size_t kMinRounds = 3;
constexpr int kResamples = 2000;
constexpr double kMinChange = 1.03;
constexpr uint32_t kSeed = 20'240'613;

bool all_positive(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value > 0; });
}

std::vector<double> resample(const std::vector<double>& values, std::mt19937& random) {
  std::vector<double> drawn(values.size());
  // The generator's own numbers are the same with every standard library, its distributions are not.
  for (double& value : drawn) value = values[random() % values.size()];
  return drawn;
}

const Row* find(const std::vector<Row>& rows, const Row& wanted) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return same_figure(row, wanted); });
  return found == rows.end() ? nullptr : &*found;
}

std::string change_line(const Row& earlier, const Row& later, const RoundsComparison& comparison) {
  return absl::StrFormat("%-7s %-11s %-34s %-5s %-20s %s -> %s (%sx, %s to %s)\n",
                         comparison.change == Change::kSlower ? "slower" : "faster", later.suite,
                         later.case_name, later.transport, later.metric, short_number(median(earlier.rounds)),
                         short_number(median(later.rounds)), short_number(comparison.times_better),
                         short_number(comparison.low), short_number(comparison.high));
}

}  // namespace

RoundsComparison compare_rounds(absl::string_view metric, const std::vector<double>& earlier,
                                const std::vector<double>& later) {
  if (earlier.size() < kMinRounds || later.size() < kMinRounds || !all_positive(earlier) ||
      !all_positive(later)) {
    return {.change = Change::kTooFewRounds};
  }
  std::mt19937 random(kSeed);
  std::vector<double> ratios;
  for (int i = 0; i < kResamples; ++i) {
    const double before = median(resample(earlier, random));
    ratios.push_back(improvement(metric, median(resample(later, random)), before));
  }
  std::sort(ratios.begin(), ratios.end());
  RoundsComparison result{.times_better = improvement(metric, median(later), median(earlier)),
                          .low = ratios[kResamples / 40],
                          .high = ratios[kResamples - 1 - kResamples / 40]};
  if (result.low > 1 && result.times_better >= kMinChange) result.change = Change::kFaster;
  if (result.high < 1 && result.times_better <= 1 / kMinChange) result.change = Change::kSlower;
  return result;
}

absl::StatusOr<EarlierRun> parse_earlier_run(absl::string_view text) {
  EarlierRun run;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    try {
      const nlohmann::json object = nlohmann::json::parse(line.begin(), line.end());
      if (run.processor.empty()) {
        run.processor = object.at("machine").at("processor").get<std::string>();
        if (run.processor.empty()) run.processor = "unknown";
        continue;
      }
      Row row{.suite = object.at("suite"),
              .case_name = object.at("case"),
              .transport = object.at("transport"),
              .metric = object.at("metric"),
              .gradwire = object.at("gradwire"),
              .rounds = object.at("rounds").get<std::vector<double>>()};
      if (find(run.rows, row) == nullptr) run.rows.push_back(std::move(row));
    } catch (const nlohmann::json::exception& error) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " is not a line that --json writes: ", error.what()));
    }
  }
  if (run.processor.empty()) {
    return absl::InvalidArgumentError("line 1 is not a line that --json writes: the file is empty");
  }
  return run;
}

RunComparison compare_runs(const EarlierRun& earlier, const std::string& processor,
                           const std::vector<Row>& later) {
  RunComparison result;
  if (processor != earlier.processor) {
    absl::StrAppend(&result.text, "note: the earlier run had another processor: ", earlier.processor, "\n");
  }
  int faster = 0;
  int unchanged = 0;
  int too_few = 0;
  for (std::size_t i = 0; i < later.size(); ++i) {
    const Row& row = later[i];
    if (i > 0 && same_figure(row, later[i - 1])) continue;
    const Row* before = find(earlier.rows, row);
    // A figure that is not computed for each round cannot be compared.
    if (before == nullptr || before->rounds.empty() || row.rounds.empty()) continue;
    const RoundsComparison comparison = compare_rounds(row.metric, before->rounds, row.rounds);
    switch (comparison.change) {
      case Change::kUnchanged:
        ++unchanged;
        continue;
      case Change::kTooFewRounds:
        ++too_few;
        continue;
      case Change::kSlower:
        ++result.slower;
        break;
      case Change::kFaster:
        ++faster;
        break;
    }
    absl::StrAppend(&result.text, change_line(*before, row, comparison));
  }
  absl::StrAppend(&result.text, "slower ", result.slower, ", faster ", faster, ", unchanged ", unchanged);
  if (too_few > 0) {
    absl::StrAppend(&result.text, ", not compared ", too_few, " (fewer than ", kMinRounds,
                    " rounds, or a value of 0)");
  }
  absl::StrAppend(&result.text, "\n");
  return result;
}

}  // namespace gradwire::bench
