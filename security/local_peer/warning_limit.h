#pragma once

#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::security {

// Limits how often the same warning is logged, so that a process that is refused again and again does not
// fill the log. Keeps a bounded number of subjects. Not thread-safe. `clock` must outlive this object.
class WarningLimit {
 public:
  // Maximum number of subjects, and so of warnings in one interval.
  static constexpr std::size_t kMaxSubjects = 256;
  static constexpr absl::Duration kInterval = absl::Minutes(1);

  explicit WarningLimit(Clock& clock = Clock::system()) : clock_(clock) {}

  // Returns whether a warning about `subject` may be logged now: the last one is kInterval ago.
  bool allows(absl::string_view subject);

 private:
  Clock& clock_;
  // The time of the last warning about each subject.
  absl::flat_hash_map<std::string, absl::Time> last_;
};

}  // namespace gradwire::security
