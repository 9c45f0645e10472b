#include "gradwire/rpc/membership/failure_detector.h"

#include <algorithm>

namespace gradwire::rpc {

FailureDetector::Watched& FailureDetector::watch(uint64_t worker, absl::Time now) {
  auto [found, added] = watched_.try_emplace(worker);
  if (added) {
    found->second.last_received = now;
    // Nothing was watched before, so no ticks came. That time must not count as a pause of this worker.
    if (watched_.size() == 1) {
      last_tick_ = now;
      next_round_ = now + options_.interval;
    }
  }
  return found->second;
}

void FailureDetector::set_state(uint64_t worker, Watched& watched, State state, Why why, Actions& actions) {
  if (watched.state == state) return;
  watched.state = state;
  actions.changes.push_back({worker, state, why});
}

void FailureDetector::attempted(uint64_t worker, absl::Time now, Actions&) { watch(worker, now); }

void FailureDetector::connected(uint64_t worker, absl::Time now, Actions& actions) {
  Watched& watched = watch(worker, now);
  if (watched.state == State::kDead) return;
  watched.connected = true;
  watched.was_connected = true;
  watched.probing = false;
  watched.refusals = 0;
  watched.after_unreachable = kAfterUnreachable;
  watched.last_received = now;
  watched.next_probe = absl::InfiniteFuture();
  watched.postponed_at = absl::InfiniteFuture();
  set_state(worker, watched, State::kAlive, Why::kConnected, actions);
}

void FailureDetector::received(uint64_t worker, absl::Time now, Actions& actions) {
  auto found = watched_.find(worker);
  if (found == watched_.end() || found->second.state == State::kDead) return;
  found->second.last_received = now;
  // A message that was sent before the connection broke does not show that the worker is alive now.
  if (found->second.connected) set_state(worker, found->second, State::kAlive, Why::kReceived, actions);
}

void FailureDetector::probe(uint64_t worker, Watched& watched, Actions& actions) {
  watched.next_probe = absl::InfiniteFuture();
  watched.probing = true;
  actions.probe.push_back(worker);
}

void FailureDetector::disconnected(uint64_t worker, absl::Time now, Actions& actions) {
  Watched& watched = watch(worker, now);
  if (watched.state == State::kDead) return;
  watched.connected = false;
  set_state(worker, watched, State::kSuspect, Why::kConnectionBroke, actions);
  // Probe at once: if the process was killed, its host refuses the connection without delay.
  // An attempt that is in progress reports its result anyway. A second one beside it would make a second
  // connection.
  if (!watched.probing) probe(worker, watched, actions);
}

void FailureDetector::refused(uint64_t worker, absl::Time now, Actions& actions) {
  Watched& watched = watch(worker, now);
  if (watched.state == State::kDead) return;
  watched.probing = false;
  watched.postponed_at = absl::InfiniteFuture();
  // The peer has connected to this worker meanwhile. The failed attempt says nothing any more.
  if (watched.connected) return;
  if (++watched.refusals >= kRefusals) {
    set_state(worker, watched, State::kDead, Why::kRefused, actions);
    watched.next_probe = absl::InfiniteFuture();
    return;
  }
  set_state(worker, watched, State::kSuspect, Why::kConnectionBroke, actions);
  watched.next_probe = now + kAfterRefusal;
}

void FailureDetector::unreachable(uint64_t worker, absl::Time now, Actions& actions) {
  Watched& watched = watch(worker, now);
  if (watched.state == State::kDead) return;
  watched.probing = false;
  watched.postponed_at = absl::InfiniteFuture();
  if (watched.connected) return;
  // Only refusals in a row prove a death. An attempt without an answer breaks the row.
  watched.refusals = 0;
  set_state(worker, watched, State::kSuspect, Why::kConnectionBroke, actions);
  watched.next_probe = now + watched.after_unreachable;
  watched.after_unreachable = std::min(2 * watched.after_unreachable, kAfterManyUnreachable);
}

void FailureDetector::unresolved(uint64_t worker, absl::Time now, Actions& actions) {
  Watched& watched = watch(worker, now);
  if (watched.was_connected || watched.state == State::kDead) return unreachable(worker, now, actions);
  // The silence during the lookup may have made it suspect.
  if (watched.state == State::kSuspect) set_state(worker, watched, State::kAlive, Why::kUnwatched, actions);
  watched_.erase(worker);
}

void FailureDetector::postponed(uint64_t worker, absl::Time now, Actions&) {
  Watched& watched = watch(worker, now);
  if (watched.state == State::kDead) return;
  watched.probing = false;
  if (watched.connected) return;
  // Between two postponed attempts the peer could not send a message.
  if (watched.postponed_at < now)
    watched.last_received = std::min(now, watched.last_received + (now - watched.postponed_at));
  watched.postponed_at = now;
  watched.next_probe = now + kAfterPostponed;
}

void FailureDetector::tick(absl::Time now, Actions& actions) {
  if (watched_.empty()) return;
  const bool round = now >= next_round_;
  if (round) {
    // A long gap between rounds means that this worker itself was paused. Messages of its peers may have
    // arrived and not been read yet, so the gap must not count as their silence.
    const absl::Duration gap = now - last_tick_;
    if (gap > 2 * options_.interval) {
      for (auto& [worker, watched] : watched_)
        // Move the last signs of life forward by the pause. One interval of it is the normal time between
        // rounds.
        watched.last_received = std::min(now, watched.last_received + gap - options_.interval);
    }
    last_tick_ = now;
    next_round_ = now + options_.interval;
  }
  for (auto& [worker, watched] : watched_) {
    if (watched.state == State::kDead) continue;
    if (watched.next_probe <= now) probe(worker, watched, actions);
    if (!round) continue;
    const absl::Duration silence = now - watched.last_received;
    if (silence >= options_.suspect_after) set_state(worker, watched, State::kSuspect, Why::kSilent, actions);
    // The detector does not decide that a silent worker is dead. The accusation is repeated each round,
    // because the store may not have answered the last one.
    if (silence >= options_.dead_after && watched.state == State::kSuspect) actions.accuse.push_back(worker);
    if (watched.connected) actions.heartbeat.push_back(worker);
  }
}

absl::Time FailureDetector::next() const {
  if (watched_.empty()) return absl::InfiniteFuture();
  absl::Time next = next_round_;
  for (const auto& [worker, watched] : watched_) next = std::min(next, watched.next_probe);
  return next;
}

FailureDetector::State FailureDetector::state(uint64_t worker) const {
  auto found = watched_.find(worker);
  return found == watched_.end() ? State::kUnwatched : found->second.state;
}

}  // namespace gradwire::rpc
