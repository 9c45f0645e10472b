// The part of Matcher that handles the end of a channel and the loss of a rank.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/cpu/p2p/matcher.h"

namespace gradwire::collectives::cpu {

using Kind = Matcher::Action::Kind;

void Matcher::on_lost(int src, const absl::Status& reason, Actions& actions) {
  Peer& from = peer(src);
  if (from.lost) return;
  from.lost = true;
  from.reason = reason;
  from.pending_rts = 0;
  // Announced messages keep their position in the queue. A receive that meets one fails, because the data
  // will not arrive. If they were removed, a later message would overtake them.
  absl::erase_if(pending_rts_, [&](const auto& entry) { return entry.first.first == src; });
  const bool alone = all_others_lost();
  std::vector<uint64_t> failed;
  for (const auto& [receive, entry] : receives_) {
    const int awaited = entry.message != 0 ? entry.src : std::get<2>(entry.key);
    if (awaited == src || (awaited == kAnyRank && alone)) failed.push_back(receive);
  }
  // The map has no order. Receives fail in the order in which they were posted, so that the same events give
  // the same actions.
  std::sort(failed.begin(), failed.end());
  for (const uint64_t receive : failed) {
    const Receive& entry = receives_.find(receive)->second;
    const uint64_t channel = std::get<0>(entry.key);
    // A receive whose message has CTS is not in a queue, and the entry of its message was erased above.
    // cancel() needs that entry.
    if (entry.message == 0) cancel(receive);
    fail(receive, lost_status(channel, src), actions);
  }
}

absl::Status Matcher::lost_status(uint64_t channel, int rank) const {
  const Peer& other = peers_[static_cast<std::size_t>(rank)];
  if (!other.lost) return absl::OkStatus();
  return absl::Status(other.reason.code(),
                      absl::StrCat(channels_.name_of(channel, rank), " ", other.reason.message()));
}

// Nothing of the channel remains in queues_ or receives_. Messages for which CTS was sent stay in
// pending_rts_: their data still arrives, and on_data() drops it.
// 1. Fail the receives. cancel() removes those that wait from their queues.
// 2. Drop the waiting messages: return the bytes of eager ones, and refuse announced ones with NACK, so that
//    the sender's operation ends.
void Matcher::end_channel(uint64_t channel, const absl::Status& reason, Actions& actions) {
  std::vector<uint64_t> failed;
  for (const auto& [receive, entry] : receives_) {
    if (std::get<0>(entry.key) == channel) failed.push_back(receive);
  }
  std::sort(failed.begin(), failed.end());
  for (const uint64_t receive : failed) {
    cancel(receive);
    fail(receive, reason, actions);
  }
  absl::erase_if(queues_, [&](auto& entry) {
    auto& [key, queue] = entry;
    if (std::get<0>(key) != channel) return false;
    const int src = std::get<2>(key);
    for (const Arrived& arrived : queue.arrived) {
      --waiting_;
      if (arrived.message == 0) {
        return_credit(src, arrived.size, actions);
      } else if (pending_rts_.erase({src, arrived.message}) > 0) {
        --peer(src).pending_rts;
        actions.push_back({.kind = Kind::kNack, .src = src, .message = arrived.message, .status = reason});
      }
    }
    return true;
  });
}

}  // namespace gradwire::collectives::cpu
