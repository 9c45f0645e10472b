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
          .rref_age = absl::ZeroDuration(),
          .hot_wait = absl::Milliseconds(200),
          .slow_store = absl::Milliseconds(500),
          .no_room = absl::Minutes(30)};
}

Diagnosis::Diagnosis(const std::string& place, inspect::Thresholds thresholds, absl::Duration timeout)
    : place_{.store = place, .timeout = timeout}, thresholds_(thresholds) {}

bool Diagnosis::read() {
  if (reader_ == nullptr) {
    // The store may not exist yet.
    absl::StatusOr<std::unique_ptr<inspect::JobReader>> reader = inspect::JobReader::open(place_);
    if (!reader.ok()) return false;
    reader_ = *std::move(reader);
  }
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

void Diagnosis::expect_healthy(std::size_t members) {
  EXPECT_TRUE(eventually([&] {
    if (!read() || !findings_.empty()) return false;
    const auto answered = std::count_if(view_.workers.begin(), view_.workers.end(),
                                        [](const inspect::WorkerView& each) { return each.answered(); });
    return static_cast<std::size_t>(answered) >= members;
  })) << view_.workers.size()
      << " workers\n"
      << text_of(findings_);
}

}  // namespace gradwire::tests
