#pragma once

#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace gradwire::transport {

// Limits the warnings about hosts that anyone can cause: one for each host and minute, and for all hosts that
// do not fit into the table together one each minute. A pure state machine. Not thread-safe.
class WarningTimes {
 public:
  static constexpr absl::Duration kInterval = absl::Minutes(1);
  static constexpr std::size_t kMaxHosts = 1024;

  // Whether a warning about `host` is due. If so, it counts as given.
  bool due(const std::string& host, absl::Time now);

 private:
  absl::flat_hash_map<std::string, absl::Time> last_;
  absl::Time last_of_others_ = absl::InfinitePast();
};

}  // namespace gradwire::transport
