#include "gradwire/rpc/membership/failure_detector.h"

#include <algorithm>

namespace gradwire::rpc {

FailureDetector::Watched& FailureDetector::watch(uint64_t worker, absl::Time now) {
  auto [found, added] = watched_.try_emplace(worker);
  if (added) {
    found->second.heard = now;
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
  watched.probing = false;
  watched.refusals = 0;
  watched.after_unreachable = kAfterUnreachable;
  watched.heard = now;
  watched.next_probe = absl::InfiniteFuture();
  set_state(worker, watched, State::kAlive, Why::kConnected, actions);
}

void FailureDetector::heard(uint64_t worker, absl::Time now, Actions& actions) {
  auto found = watched_.find(worker);
  if (found == watched_.end() || found->second.state == State::kDead) return;
  found->second.heard = now;
  // Messages from before a connection broke say nothing about the present.
  if (found->second.connected) set_state(worker, found->second, State::kAlive, Why::kHeard, actions);
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
  // At once: where a process was killed, its host says so without delay.
  if (!watched.probing) probe(worker, watched, actions);
}

void FailureDetector::refused(uint64_t worker, absl::Time now, Actions& actions) {
  Watched& watched = watch(worker, now);
  if (watched.state == State::kDead) return;
  watched.probing = false;
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
  if (watched.connected) return;
  watched.refusals = 0;
  set_state(worker, watched, State::kSuspect, Why::kConnectionBroke, actions);
  watched.next_probe = now + watched.after_unreachable;
  watched.after_unreachable = std::min(2 * watched.after_unreachable, kAfterManyUnreachable);
}

void FailureDetector::tick(absl::Time now, Actions& actions) {
  if (watched_.empty()) return;
  const bool round = now >= next_round_;
  if (round) {
    // Did this worker itself stand still? Then what the others said meanwhile may lie unread.
    const absl::Duration gap = now - last_tick_;
    if (gap > 2 * options_.interval) {
      for (auto& [worker, watched] : watched_)
        watched.heard = std::min(now, watched.heard + gap - options_.interval);
    }
    last_tick_ = now;
    next_round_ = now + options_.interval;
  }
  for (auto& [worker, watched] : watched_) {
    if (watched.state == State::kDead) continue;
    if (watched.next_probe <= now) probe(worker, watched, actions);
    if (!round) continue;
    const absl::Duration silence = now - watched.heard;
    if (silence >= options_.suspect_after) set_state(worker, watched, State::kSuspect, Why::kSilent, actions);
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
