#include "gradwire/tools/launch/rendezvous/beat_watch.h"

#include <algorithm>
#include <utility>

namespace gradwire::rendezvous {

// A node that was watched before keeps its times. A new one starts without: it counts as lost only when its
// beat has not moved for the whole time since it was first read here.
void BeatWatch::choose(const std::vector<std::string>& ids) {
  if (ids == ids_) return;
  HashMap<std::string, Watched> watched;
  for (const std::string& id : ids) watched[id] = std::exchange(watched_[id], Watched{});
  ids_ = ids;
  watched_ = std::move(watched);
}

const std::vector<std::string>& BeatWatch::due(absl::Time now) const {
  static const std::vector<std::string>& nobody = *new std::vector<std::string>();
  return now >= next() ? ids_ : nobody;
}

absl::Time BeatWatch::next() const { return ids_.empty() ? absl::InfiniteFuture() : next_; }

void BeatWatch::set_read_interval(absl::Duration time) {
  next_ -= read_interval_ - time;
  read_interval_ = time;
}

void BeatWatch::on_beats_read(const std::vector<std::optional<std::string>>& beats, absl::Time now) {
  if (beats.size() != ids_.size()) return;
  // If this node has not read for more than two intervals (it was paused, or the store could not be reached),
  // the nodes may have moved their beats meanwhile. Move `since` forward by that time, so that it does not
  // count.
  absl::Duration not_read;
  if (now - last_read_ > 2 * interval_) not_read = now - last_read_;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    Watched& watched = watched_[ids_[i]];
    if (!watched.was_read || watched.beat != beats[i]) {
      watched.moved = watched.was_read;
      watched.was_read = true;
      watched.beat = beats[i];
      watched.since = now;
    } else {
      watched.since += not_read;
    }
    watched.lost = now - watched.since >= interval_ * attempts_;
  }
  last_read_ = now;
  next_ = now + read_interval_;
}

bool BeatWatch::lost(const std::string& id, absl::Time now) const {
  const auto watched = watched_.find(id);
  return watched != watched_.end() && watched->second.lost && now - last_read_ <= 2 * interval_;
}

bool BeatWatch::has_moved(const std::string& id) const {
  const auto watched = watched_.find(id);
  return watched != watched_.end() && watched->second.moved;
}

bool BeatWatch::all_gone(absl::Time now) const {
  return std::all_of(watched_.begin(), watched_.end(), [&](const auto& entry) {
    const auto& [id, watched] = entry;
    return (watched.was_read && !watched.beat) || lost(id, now);
  });
}

}  // namespace gradwire::rendezvous
