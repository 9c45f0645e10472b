#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::security {

// Limits the warnings that other processes can cause, so that one that is refused again and again does not
// fill the log: one for each subject and minute, for example for each address of a host. All subjects that do
// not fit into the table share one warning each minute. A pure state machine. Not thread-safe.
class WarningLimit {
 public:
  static constexpr absl::Duration kInterval = absl::Minutes(1);
  // Maximum number of subjects.
  static constexpr std::size_t kMaxSubjects = 1024;

  // Returns whether a warning about `subject` may be logged now. If so, it counts as logged.
  bool allows(absl::string_view subject, absl::Time now);

 private:
  // The time of the last warning about each subject.
  HashMap<std::string, absl::Time> last_;
  absl::Time last_of_others_ = absl::InfinitePast();
};

}  // namespace gradwire::security
