#include "gradwire/security/warning_limit.h"

namespace gradwire::security {

bool WarningLimit::allows(absl::string_view subject, absl::Time now) {
  const auto known = last_.find(subject);
  if (known == last_.end() && last_.size() >= kMaxSubjects) {
    absl::erase_if(last_, [now](const auto& entry) { return now - entry.second >= kInterval; });
    if (last_.size() >= kMaxSubjects) {
      if (now - last_of_others_ < kInterval) return false;
      last_of_others_ = now;
      return true;
    }
  }
  absl::Time& last = last_.try_emplace(subject, absl::InfinitePast()).first->second;
  if (now - last < kInterval) return false;
  last = now;
  return true;
}

}  // namespace gradwire::security
