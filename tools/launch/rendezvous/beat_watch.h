#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace gradwire::rendezvous {

// What one node thinks of the others whose beats it looks at: a pure state machine.
//
// All are looked at in one pass every interval. A node is lost when its beat has stood still, or been
// missing, through looks that span `attempts` intervals. Time in which this node itself did not look (it was
// paused, the store was away) counts for nobody's silence.
//
// Not thread-safe.
class BeatWatch {
 public:
  BeatWatch(absl::Duration interval, int attempts) : interval_(interval), attempts_(attempts) {}

  // Whom to look at from now on. For those that are new the silence begins with the first look.
  void choose(const std::vector<std::string>& ids);
  // Whom to look at now; nobody before next().
  const std::vector<std::string>& due(absl::Time now) const;
  absl::Time next() const;
  // Looks so often from now on, without another idea of who is lost.
  void look_every(absl::Duration time);
  // What due() gave: in its order, none where there was no beat.
  void looked(const std::vector<std::optional<std::string>>& beats, absl::Time now);

  // By looks that are no older than two intervals.
  bool lost(const std::string& id, absl::Time now) const;
  // Its beat has moved since it was chosen.
  bool heard(const std::string& id) const;
  // All have been looked at, and had no beat any more or were lost.
  bool all_gone(absl::Time now) const;

 private:
  struct Watched {
    bool looked = false;
    std::optional<std::string> beat;
    absl::Time since;  // when the beat was first seen as it is
    bool heard = false;
    bool lost = false;
  };

  const absl::Duration interval_;
  const int attempts_;
  absl::Duration look_every_ = interval_;
  std::vector<std::string> ids_;
  absl::flat_hash_map<std::string, Watched> watched_;
  absl::Time next_ = absl::InfinitePast();
  absl::Time last_look_ = absl::InfinitePast();
};

}  // namespace gradwire::rendezvous
