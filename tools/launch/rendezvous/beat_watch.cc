#include "gradwire/tools/launch/rendezvous/beat_watch.h"

#include <algorithm>
#include <utility>

namespace gradwire::rendezvous {

void BeatWatch::choose(const std::vector<std::string>& ids) {
  if (ids == ids_) return;
  absl::flat_hash_map<std::string, Watched> watched;
  for (const std::string& id : ids) watched[id] = std::exchange(watched_[id], Watched{});
  ids_ = ids;
  watched_ = std::move(watched);
}

const std::vector<std::string>& BeatWatch::due(absl::Time now) const {
  static const std::vector<std::string>& nobody = *new std::vector<std::string>();
  return now >= next() ? ids_ : nobody;
}

absl::Time BeatWatch::next() const { return ids_.empty() ? absl::InfiniteFuture() : next_; }

void BeatWatch::look_every(absl::Duration time) {
  next_ -= look_every_ - time;
  look_every_ = time;
}

void BeatWatch::looked(const std::vector<std::optional<std::string>>& beats, absl::Time now) {
  if (beats.size() != ids_.size()) return;
  absl::Duration unseen;
  if (now - last_look_ > 2 * interval_) unseen = now - last_look_;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    Watched& watched = watched_[ids_[i]];
    if (!watched.looked || watched.beat != beats[i]) {
      watched.heard = watched.looked;
      watched.looked = true;
      watched.beat = beats[i];
      watched.since = now;
    } else {
      watched.since += unseen;
    }
    watched.lost = now - watched.since >= interval_ * attempts_;
  }
  last_look_ = now;
  next_ = now + look_every_;
}

bool BeatWatch::lost(const std::string& id, absl::Time now) const {
  const auto watched = watched_.find(id);
  return watched != watched_.end() && watched->second.lost && now - last_look_ <= 2 * interval_;
}

bool BeatWatch::heard(const std::string& id) const {
  const auto watched = watched_.find(id);
  return watched != watched_.end() && watched->second.heard;
}

bool BeatWatch::all_gone(absl::Time now) const {
  return std::all_of(watched_.begin(), watched_.end(), [&](const auto& entry) {
    const auto& [id, watched] = entry;
    return (watched.looked && !watched.beat) || lost(id, now);
  });
}

}  // namespace gradwire::rendezvous
