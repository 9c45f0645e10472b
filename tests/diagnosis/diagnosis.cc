#include "gradwire/tests/diagnosis/diagnosis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/tests/diagnosis/guide.h"
#include "gradwire/tools/inspect/analysis/analysis.h"

namespace gradwire::tests {
namespace {

using inspect::Finding;

std::vector<std::string> culprits_of(const inspect::JobView& job, const Finding& finding) {
  std::vector<std::string> names;
  for (const uint64_t culprit : finding.culprits) {
    const inspect::WorkerView* worker = job.find(culprit);
    names.push_back(worker == nullptr ? "an unknown worker" : worker->record.name());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string text_of(const std::vector<Finding>& findings) {
  std::vector<std::string> lines;
  for (const Finding& finding : findings) {
    lines.push_back(absl::StrCat(inspect::name_of(finding.kind), ": ", finding.title));
    for (const std::string& detail : finding.details) lines.push_back("    " + detail);
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace

inspect::Thresholds short_thresholds() {
  return {.slow_call = absl::Milliseconds(200),
          .deadlock = absl::Milliseconds(200),
          .late_rank = absl::Milliseconds(200),
          .rrefs = 100,
          .rref_age = absl::ZeroDuration()};
}

Diagnosis::Diagnosis(const std::string& place, inspect::Thresholds thresholds, absl::Duration timeout)
    : thresholds_(thresholds) {
  absl::StatusOr<std::unique_ptr<inspect::JobReader>> reader =
      inspect::JobReader::open({.store = place, .timeout = timeout});
  if (reader.ok()) {
    reader_ = *std::move(reader);
  } else {
    ADD_FAILURE() << reader.status();
  }
}

bool Diagnosis::read() {
  if (reader_ == nullptr) return false;
  // A worker answers 20 times a second. Without a pause of its own a reading could meet one worker at the
  // right time, and another one too soon, again and again.
  absl::SleepFor(absl::Milliseconds(60));
  std::string warning;
  absl::StatusOr<inspect::JobView> view = reader_->read(warning);
  if (!view.ok()) return false;
  for (const inspect::WorkerView& worker : view->workers) {
    if (absl::IsResourceExhausted(worker.status)) return false;
  }
  view_ = *std::move(view);
  findings_ = inspect::analyze(view_, thresholds_);
  return true;
}

std::string Diagnosis::expect(Finding::Kind kind, const std::vector<std::string>& culprits) {
  Finding found;
  const bool is_found = eventually([&] {
    if (!read()) return false;
    for (const Finding& finding : findings_) {
      if (finding.kind != kind || culprits_of(view_, finding) != culprits) continue;
      found = finding;
      return true;
    }
    return false;
  });
  if (!is_found) {
    ADD_FAILURE() << "no finding \"" << inspect::name_of(kind) << "\" with the culprits "
                  << absl::StrJoin(culprits, ", ") << " in\n"
                  << text_of(findings_);
    return "";
  }
  EXPECT_TRUE(is_in_guide(found)) << found.title << "\n" << found.advice;
  return found.title;
}

void Diagnosis::expect_healthy() {
  EXPECT_TRUE(eventually([&] { return read() && findings_.empty(); })) << text_of(findings_);
}

}  // namespace gradwire::tests
