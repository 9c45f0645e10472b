#include "gradwire/security/local_peer/warning_limit.h"

namespace gradwire::security {

bool WarningLimit::allows(absl::string_view subject) {
  const absl::Time now = clock_.now();
  const auto found = last_.find(subject);
  if (found != last_.end()) {
    if (now - found->second < kInterval) return false;
    found->second = now;
    return true;
  }
  if (last_.size() >= kMaxSubjects) {
    absl::erase_if(last_, [now](const auto& entry) { return now - entry.second >= kInterval; });
    if (last_.size() >= kMaxSubjects) return false;
  }
  last_.emplace(subject, now);
  return true;
}

}  // namespace gradwire::security
