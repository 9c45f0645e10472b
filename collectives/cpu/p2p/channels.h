#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::collectives::cpu {

// Table of the channels of one rank: which channels have ended, and how error messages name ranks in each
// channel. Not thread-safe.
class Channels {
 public:
  // Returns OK while the channel is open, otherwise the reason for which it was aborted or forgotten.
  absl::Status state(uint64_t channel) const;
  bool ended(uint64_t channel) const { return ended_.contains(channel); }
  // Ends the channel with `reason`. Returns false if the channel had ended before; then the first reason
  // stays.
  bool abort(uint64_t channel, const absl::Status& reason) { return ended_.emplace(channel, reason).second; }
  // Ends the channel permanently and returns the reason. Its number must not be used again. Late messages for
  // the last kMostForgotten forgotten channels are dropped. Older channels are not remembered: late messages
  // for them are queued, within the window of their sender.
  static constexpr std::size_t kMostForgotten = std::size_t{1} << 14;
  const absl::Status& forget(uint64_t channel);

  // Sets the names of ranks in error messages of the channel. `names` maps a rank of the world to a rank of
  // the group.
  void name_ranks(uint64_t channel, HashMap<int, int> names) {
    names_.insert_or_assign(channel, std::move(names));
  }
  // Returns "rank 2", or "rank 5 of the world" for a rank that has no name in the channel.
  std::string name_of(uint64_t channel, int rank) const;

 private:
  HashMap<uint64_t, absl::Status> ended_;
  // Keys of `ended_` that were forgotten, oldest first.
  std::deque<uint64_t> forgotten_;
  HashMap<uint64_t, HashMap<int, int>> names_;
};

}  // namespace gradwire::collectives::cpu
