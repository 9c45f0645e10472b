#include "gradwire/tools/launch/rendezvous/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::rendezvous {

absl::Status check(const Options& options) {
  const Settings& settings = options.settings;
  if (settings.min_nodes < 1 || settings.max_nodes < settings.min_nodes || settings.max_nodes > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrCat("number of nodes out of range: got ", settings.min_nodes,
                                                   ":", settings.max_nodes,
                                                   ", expected MIN:MAX with 1 <= MIN <= MAX <= ", kMaxNodes));
  }
  if (settings.max_restarts < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("max_restarts must not be negative, got ", settings.max_restarts));
  if (settings.fixed_ranks != options.node_rank.has_value()) {
    return absl::InvalidArgumentError("a node rank must be given if and only if ranks are fixed");
  }
  if (options.node_rank && (*options.node_rank < 0 || *options.node_rank >= settings.max_nodes)) {
    return absl::InvalidArgumentError(absl::StrCat("node rank out of range: got ", *options.node_rank,
                                                   ", expected 0..", settings.max_nodes - 1));
  }
  if (options.self.roles.size() > kMaxRoles) {
    return absl::InvalidArgumentError(
        absl::StrCat("a node has ", options.self.roles.size(), " roles, the limit is ", kMaxRoles));
  }
  int workers = 0;
  for (const Role& role : options.self.roles) {
    if (role.count < 1 || role.count > kMaxWorkers - workers || role.name.size() > kMaxName) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid role \"", role.name, "\" with ", role.count, " workers"));
    }
    workers += role.count;
  }
  // An id gets a suffix when the node enters again.
  if (options.node_id.empty() || options.node_id.size() > kMaxName / 2 ||
      options.self.host.size() > kMaxName || options.self.address.size() > kMaxName ||
      options.run_id.size() > kMaxName) {
    return absl::InvalidArgumentError("a node's id, host or address, or the job's id, is empty or too long");
  }
  if (options.keep_alive_interval <= absl::ZeroDuration() || options.keep_alive_max_attempt < 1 ||
      options.watched < 1) {
    return absl::InvalidArgumentError(
        "keep_alive_interval, keep_alive_max_attempt and watched must be positive");
  }
  return absl::OkStatus();
}

Rendezvous::Rendezvous(Options options, absl::Time now)
    : options_(std::move(options)),
      view_({.id = options_.node_id, .node = options_.self, .rank = options_.node_rank}),
      workers_(options_.round_store),
      times_(options_.join_timeout, options_.last_call_timeout),
      watch_(options_.keep_alive_interval, options_.keep_alive_max_attempt),
      next_beat_(now) {}

// After the end: delete the beat, then read the beats of the nodes that still need this one's store, until
// all are gone or the time is over. Before the end: advance the state for the current time, then name the
// next operation.
Rendezvous::Wanted Rendezvous::wanted(absl::Time now) {
  Wanted wanted;
  if (ended_) {
    linger(now);
    if (done_) return wanted;
    if (!beat_deleted_) {
      wanted.beat = {.id = id()};
      wanted.wake = now;
    } else {
      wanted.beats_to_read = watch_.due(now);
      wanted.wake = std::min(watch_.next(), linger_until_);
    }
    return wanted;
  }
  advance(now);
  if (ended_) return this->wanted(now);
  if (now >= next_beat_) wanted.beat = {.id = id(), .value = absl::StrCat(beats_ + 1)};
  wanted.beats_to_read = watch_.due(now);
  wanted.change = change_;
  wanted.wake = std::min({next_beat_, watch_.next(), times_.next(now)});
  return wanted;
}

void Rendezvous::on_beat_written(absl::Time now) {
  if (ended_) {
    beat_deleted_ = true;
    return linger(now);
  }
  ++beats_;
  next_beat_ = now + options_.keep_alive_interval;
}

void Rendezvous::on_beats_read(const std::vector<std::optional<std::string>>& beats, absl::Time now) {
  watch_.on_beats_read(beats, now);
  if (ended_) return linger(now);
  advance(now);
}

void Rendezvous::read(std::optional<absl::string_view> bytes, absl::Time now) {
  if (ended_) return;
  const absl::Status status = view_.read(bytes);
  if (!status.ok()) return end({.status = status}, now);
  advance(now);
}

// Without a store this node cannot report anything to the others, so it is also done.
void Rendezvous::on_store_lost(absl::Status status) {
  if (!ended_) end({.status = std::move(status)}, absl::InfinitePast());
  done_ = true;
}

void Rendezvous::leave(absl::string_view reason, absl::Time now) {
  if (leave_reason_) return;
  leave_reason_ = std::string(reason);
  advance(now);
}

// If this node serves the store, the others learn of the end of the job from it. So it watches them until
// their beats are deleted or stand still. For any other node the list is empty, and it is done when its own
// beat is deleted.
void Rendezvous::end(Outcome outcome, absl::Time now) {
  ended_ = true;
  change_.reset();
  update_ = {.kind = RendezvousUpdate::Kind::kEnded, .outcome = std::move(outcome)};
  std::vector<std::string> others;
  const Record* const record = view_.record();
  if (options_.hosts_store && record != nullptr && record->phase == Phase::kClosed) {
    for (const std::vector<Member>* members : {&record->participants, &record->waiting}) {
      for (const Member& member : *members) {
        if (member.id != id()) others.push_back(member.id);
      }
    }
  }
  watch_.choose(others);
  // Read more often, because the user waits for the end of this launcher.
  watch_.set_read_interval(options_.keep_alive_interval / 20);
  // Twice the time that it takes to detect a lost node.
  linger_until_ = now + 2 * options_.keep_alive_interval * (options_.keep_alive_max_attempt + 1);
}

void Rendezvous::linger(absl::Time now) {
  done_ = done_ || (beat_deleted_ && (now >= linger_until_ || watch_.all_gone(now)));
}

}  // namespace gradwire::rendezvous
