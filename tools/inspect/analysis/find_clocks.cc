// Wall clocks that are off.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

// How far the clock of a worker is ahead of the observer's: between these bounds, because the worker read its
// clock between the question and the answer.
struct Offset {
  const WorkerView* worker = nullptr;
  absl::Duration least;
  absl::Duration most;

  absl::Duration middle() const { return least + (most - least) / 2; }
};

std::vector<Offset> offsets_of(const JobView& job) {
  std::vector<Offset> offsets;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered() || worker.state.wall_us() == 0 || worker.asked == absl::InfinitePast() ||
        worker.answered_at < worker.asked) {
      continue;
    }
    const absl::Time wall = absl::FromUnixMicros(worker.state.wall_us());
    offsets.push_back({&worker, wall - worker.answered_at, wall - worker.asked});
  }
  return offsets;
}

// The clock that most clocks agree with: the median of all workers and of the observer, whose own offset is
// zero. The observer decides between two workers.
absl::Duration majority(const std::vector<Offset>& offsets) {
  std::vector<absl::Duration> all = {absl::ZeroDuration()};
  for (const Offset& offset : offsets) all.push_back(offset.middle());
  std::sort(all.begin(), all.end());
  // If two are in the middle: the one nearer to the clock of this process.
  const absl::Duration lower = all[(all.size() - 1) / 2], upper = all[all.size() / 2];
  return absl::AbsDuration(lower) < absl::AbsDuration(upper) ? lower : upper;
}

}  // namespace

std::vector<Finding> find_wrong_clocks(const JobView& job, const Thresholds& thresholds) {
  std::vector<Finding> findings;
  const std::vector<Offset> offsets = offsets_of(job);
  const absl::Duration right = majority(offsets);
  for (const Offset& offset : offsets) {
    // The smallest difference that the bounds allow.
    const absl::Duration ahead = offset.least - right, behind = right - offset.most;
    if (std::max(ahead, behind) < thresholds.wrong_clock) continue;
    const bool is_ahead = ahead > behind;
    const absl::Duration off = is_ahead ? offset.middle() - right : right - offset.middle();
    Finding& finding = findings.emplace_back();
    finding.kind = Finding::Kind::kWrongClock;
    finding.title = absl::StrCat("wrong clock: the wall clock of ", in_quotes(offset.worker->record.name()),
                                 " on host ", in_quotes(offset.worker->state.host()), " is ", text_of(off),
                                 is_ahead ? " ahead of" : " behind", " the other clocks of the job");
    finding.details = {
        absl::StrCat("with an error of at most ",
                     text_of((offset.most - offset.least) / 2 + absl::Milliseconds(1))),
        "the times in its log, its flight record and its certificates are wrong; deadlines are not"};
    finding.culprits = {offset.worker->record.incarnation()};
  }
  return findings;
}

}  // namespace gradwire::inspect
