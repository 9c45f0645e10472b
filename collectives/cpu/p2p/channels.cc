#include "gradwire/collectives/cpu/p2p/channels.h"

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {

absl::Status Channels::state(uint64_t channel) const {
  const auto found = ended_.find(channel);
  return found == ended_.end() ? absl::OkStatus() : found->second;
}

const absl::Status& Channels::forget(uint64_t channel) {
  // All forgotten channels share one status, because thousands of them are kept.
  static const auto* const reason = new absl::Status(absl::CancelledError("the channel is closed"));
  // The channel may have been aborted before. The new reason replaces the reason of the abort: nobody uses
  // the channel any more, so nobody reads the old one.
  names_.erase(channel);
  absl::Status& state = ended_[channel];
  // The channel was forgotten before.
  if (state == *reason) return *reason;
  state = *reason;
  // An entry outlives its channel, so that late messages for it are dropped. The memory is bounded: when
  // there are too many entries, the oldest one goes.
  forgotten_.push_back(channel);
  if (forgotten_.size() > kMostForgotten) {
    ended_.erase(forgotten_.front());
    forgotten_.pop_front();
  }
  return *reason;
}

std::string Channels::name_of(uint64_t channel, int rank) const {
  const auto channels = names_.find(channel);
  if (channels == names_.end()) return absl::StrCat("rank ", rank);
  const auto found = channels->second.find(rank);
  return found == channels->second.end() ? absl::StrCat("rank ", rank, " of the world")
                                         : absl::StrCat("rank ", found->second);
}

}  // namespace gradwire::collectives::cpu
