#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::rendezvous {

// Finds out which other nodes are lost, from their beats (heartbeats in the store). A pure state machine.
//
// The beats of all watched nodes are read in one pass every interval. A node is lost when its beat has not
// changed, or has been missing, in all reads of `attempts` intervals. Time in which this node itself did not
// read (because it was paused, or the store could not be reached) does not count.
//
// Not thread-safe.
class BeatWatch {
 public:
  BeatWatch(absl::Duration interval, int attempts) : interval_(interval), attempts_(attempts) {}

  // Sets the nodes to watch. For a new node the time without a change begins with the first read.
  void choose(const std::vector<std::string>& ids);
  // The nodes whose beats must be read now; empty before next().
  const std::vector<std::string>& due(absl::Time now) const;
  absl::Time next() const;
  // Changes the interval between reads. Does not change when a node counts as lost.
  void set_read_interval(absl::Duration time);
  // Takes the beats of the nodes in due(), in that order; nullopt for a missing beat.
  void on_beats_read(const std::vector<std::optional<std::string>>& beats, absl::Time now);

  // Whether a node is lost, according to reads that are not older than two intervals.
  bool lost(const std::string& id, absl::Time now) const;
  // Whether the beat of a node has changed since it was chosen.
  bool has_moved(const std::string& id) const;
  // Whether the beats of all watched nodes have been read, and were missing or lost.
  bool all_gone(absl::Time now) const;

 private:
  struct Watched {
    bool was_read = false;
    std::optional<std::string> beat;
    absl::Time since;  // When the beat got its current value, as far as known.
    bool moved = false;
    bool lost = false;
  };

  const absl::Duration interval_;
  const int attempts_;
  absl::Duration read_interval_ = interval_;
  std::vector<std::string> ids_;
  HashMap<std::string, Watched> watched_;
  absl::Time next_ = absl::InfinitePast();
  absl::Time last_read_ = absl::InfinitePast();
};

}  // namespace gradwire::rendezvous
