#include "gradwire/transport/tcp/admission/warning_times.h"

namespace gradwire::transport {

bool WarningTimes::due(const std::string& host, absl::Time now) {
  const auto known = last_.find(host);
  if (known == last_.end() && last_.size() >= kMaxHosts) {
    absl::erase_if(last_, [now](const auto& entry) { return now - entry.second >= kInterval; });
  }
  if (known == last_.end() && last_.size() >= kMaxHosts) {
    if (now - last_of_others_ < kInterval) return false;
    last_of_others_ = now;
    return true;
  }
  absl::Time& last = last_.try_emplace(host, absl::InfinitePast()).first->second;
  if (now - last < kInterval) return false;
  last = now;
  return true;
}

}  // namespace gradwire::transport
