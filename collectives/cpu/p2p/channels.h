#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace gradwire::collectives::cpu {

// What one rank knows of channels: which have ended, and how errors name ranks. Not thread-safe.
class Channels {
 public:
  // OK unless the channel was aborted or forgotten: then why.
  absl::Status state(uint64_t channel) const;
  bool ended(uint64_t channel) const { return ended_.contains(channel); }
  // False when it has ended before: the first reason stays.
  bool abort(uint64_t channel, const absl::Status& reason) { return ended_.emplace(channel, reason).second; }
  // Ends the channel for good; its number is not used again. Messages that come later are dropped for the
  // last kMostForgotten channels; those for older ones would wait, within their sender's window. The reason.
  static constexpr std::size_t kMostForgotten = std::size_t{1} << 14;
  const absl::Status& forget(uint64_t channel);

  // How errors of the channel name ranks: by rank of the world, the number.
  void name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names) {
    names_.insert_or_assign(channel, std::move(names));
  }
  // "rank 2"; for a rank that has no name in the channel "rank 5 of the world".
  std::string name_of(uint64_t channel, int rank) const;

 private:
  absl::flat_hash_map<uint64_t, absl::Status> ended_;
  // The entries of `ended_` that were forgotten, the oldest first.
  std::deque<uint64_t> forgotten_;
  absl::flat_hash_map<uint64_t, absl::flat_hash_map<int, int>> names_;
};

}  // namespace gradwire::collectives::cpu
