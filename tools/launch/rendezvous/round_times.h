#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {

// Measures how long the nodes of a round have been joining, by this node's clock. Not thread-safe.
class RoundTimes {
 public:
  RoundTimes(absl::Duration join_timeout, absl::Duration last_call_timeout)
      : join_timeout_(join_timeout), last_call_timeout_(last_call_timeout) {}

  // Updates the times from the current record.
  void follow(const Record& record, bool takes_part, absl::Time now) {
    const bool same_round = std::exchange(round_, record.round) == record.round;
    const bool joining = record.phase == Phase::kJoining;
    const bool enough = static_cast<int>(record.participants.size()) >= record.settings.min_nodes;
    follow(joining && takes_part, same_round, now, joining_since_);
    follow(joining && enough, same_round, now, enough_since_);
  }

  // Whether this node has been a participant of the joining round for join_timeout.
  bool overdue(absl::Time now) const { return joining_since_ && now >= *joining_since_ + join_timeout_; }
  // Whether the last call is over. It begins when there are min_nodes participants.
  bool last_call_over(absl::Time now) const {
    return last_call_timeout_ <= absl::ZeroDuration() ||
           (enough_since_ && now >= *enough_since_ + last_call_timeout_);
  }
  // The next time at which overdue() or last_call_over() changes. After the last call the round waits for
  // nodes to be ready, not for a time.
  absl::Time next(absl::Time now) const {
    absl::Time next = joining_since_ ? *joining_since_ + join_timeout_ : absl::InfiniteFuture();
    if (enough_since_ && !last_call_over(now)) next = std::min(next, *enough_since_ + last_call_timeout_);
    return next;
  }

 private:
  static void follow(bool counts, bool same_round, absl::Time now, std::optional<absl::Time>& since) {
    if (!counts || !same_round) since.reset();
    if (counts && !since) since = now;
  }

  const absl::Duration join_timeout_;
  const absl::Duration last_call_timeout_;
  int64_t round_ = -1;
  std::optional<absl::Time> joining_since_;
  std::optional<absl::Time> enough_since_;
};

}  // namespace gradwire::rendezvous
