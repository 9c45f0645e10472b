#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tools/inspect/analysis/finding.h"
#include "gradwire/tools/inspect/analysis/job_view.h"
#include "gradwire/tools/inspect/input/job_reader.h"

namespace gradwire::tests {

// Thresholds for jobs in which a planted problem stays until the test removes it, and no other call is in
// progress: short ages are sufficient.
inspect::Thresholds short_thresholds();

// Reads a job as tools/inspect does, and expects findings. Each method reads again and again until its
// expectation is met, and adds a failure to the test if that takes longer than a minute.
class Diagnosis {
 public:
  // `place`: the store of the job. `timeout`: the time that a worker has to answer.
  explicit Diagnosis(const std::string& place, inspect::Thresholds thresholds = short_thresholds(),
                     absl::Duration timeout = absl::Seconds(20));

  // Waits for a finding of this kind with exactly these culprits (names), whose sentence and whose advice are
  // those that docs/observability.md has. Returns its title.
  std::string expect(inspect::Finding::Kind kind, const std::vector<std::string>& culprits);
  // Waits until nothing is found, and at least so many workers have answered.
  void expect_healthy(std::size_t members = 1);

  // The last reading.
  const inspect::JobView& view() const { return view_; }

 private:
  // Reads once. Returns false if a worker was asked too soon after the last time.
  bool read();

  const inspect::JobPlace place_;
  const inspect::Thresholds thresholds_;
  std::unique_ptr<inspect::JobReader> reader_;
  inspect::JobView view_;
  std::vector<inspect::Finding> findings_;
};

}  // namespace gradwire::tests
