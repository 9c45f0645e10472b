#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/launch/rendezvous/messages.h"
#include "gradwire/tools/launch/rendezvous/rendezvous.h"
#include "gradwire/tools/launch/rendezvous/transitions.h"

namespace gradwire::rendezvous {

void Rendezvous::advance(absl::Time now) {
  if (ended_) return;
  change_.reset();
  if (!record_) {
    if (leave_reason_) return end({.status = absl::CancelledError("left before the job began")}, now);
    if (!absent_) return;
    Record first = first_record(me_, options_.settings, options_.run_id);
    run_if_complete(first, now);
    return propose(std::move(first));
  }
  locate();
  const bool named = options_.run_id != kNoRunId && record_->run_id != kNoRunId;
  if (!ever_entered_ && named && record_->run_id != options_.run_id) {
    return end({.status = other_job(*record_, options_.run_id)}, now);
  }
  if (record_->phase == Phase::kClosed) {
    return end(ever_entered_ ? outcome_of(*record_) : Outcome{.status = too_late(*record_)}, now);
  }
  follow_times(now);
  if (place_ == Place::kOutside && entered_) advance_removed(now);
  if (ended_) return;
  if (place_ == Place::kOutside) {
    if (!entered_) advance_outside(now);
  } else {
    parting_.reset();
    Record next = *record_;
    record_->phase == Phase::kJoining ? joining(next, now) : running(next, now);
    if (!ended_ && next != *record_) propose(std::move(next));
  }
  if (ended_) return;
  choose_watched();
  update_news();
}

void Rendezvous::advance_removed(absl::Time now) {
  if (parting_) return end({.status = *parting_}, now);
  if (leave_reason_) return end({.status = absl::CancelledError("left after it was taken for lost")}, now);
  if (engaged_) return;  // until ready()
  engaged_.reset();
  failure_.reset();
  workers_done_ = false;
  entered_ = false;
  me_.id = absl::StrCat(options_.node_id, ".", ++entries_);
  next_beat_ = now;
}

void Rendezvous::advance_outside(absl::Time now) {
  if (leave_reason_) return end({.status = absl::CancelledError("left before it took part")}, now);
  if (record_->settings != options_.settings) {
    return end({.status = other_settings(*record_, options_.settings)}, now);
  }
  Record next = *record_;
  if (const Member* other = find_rank(*record_, me_)) {
    if (watch_.heard(other->id)) return end({.status = rank_taken(me_, *other)}, now);
    remove_lost(next, now);
    if (next == *record_) return;
    if (find_rank(next, me_) != nullptr || next.phase == Phase::kClosed) return propose(std::move(next));
  }
  if (count_nodes(next) >= kMaxNodes) {
    return end(
        {.status = absl::ResourceExhaustedError(absl::StrCat("the job has ", kMaxNodes, " nodes already"))},
        now);
  }
  // Not every node has to say it: the first that does names the job, before its workers have heard anything else.
  if (next.run_id == kNoRunId && next.phase == Phase::kJoining && next.round == 0)
    next.run_id = options_.run_id;
  enter(next, me_);
  run_if_complete(next, now);
  propose(std::move(next));
}

void Rendezvous::joining(Record& next, absl::Time now) {
  if (leave_reason_) return leave_record(next, now);
  if (place_ == Place::kParticipant && !engaged_) next.participants[group_rank_].ready = true;
  remove_lost(next, now);
  let_in_waiting(next);
  run_if_complete(next, now);
  if (next.phase != Phase::kJoining || !joining_since_ || now < *joining_since_ + options_.join_timeout)
    return;
  parting_ = too_few(*record_, options_.join_timeout);
  remove(next, me_.id);
  let_in_waiting(next);
}

void Rendezvous::running(Record& next, absl::Time now) {
  if (place_ == Place::kParticipant) {
    if (next.round > last_round_ && !engaged_ && (!options_.round_store || next.store || group_rank_ == 0))
      engage();
    if (next.round == last_round_) report(next);
    if (next.phase != Phase::kRunning) return;
  }
  // What the workers came to is said first.
  if (leave_reason_ && next == *record_) return leave_record(next, now);
  remove_lost(next, now);
  if (next.phase == Phase::kRunning && could_grow(next)) {
    next.failure.reset();
    begin_next(next, /*complete=*/false);
  }
}

// Takes up the round that the record says runs.
void Rendezvous::engage() {
  engaged_ = last_round_ = record_->round;
  failure_.reset();
  workers_done_ = false;
  served_.reset();
  round_ = {.round = record_->round,
            .group_rank = group_rank_,
            .restarts_used = record_->restarts_used,
            .max_restarts = record_->settings.max_restarts,
            .run_id = record_->run_id,
            .store = record_->store,
            .ended_before = record_->failure};
  for (const Member& member : record_->participants) round_.nodes.push_back(member.node);
}

// RUNNING: what the launcher has said about the round.
void Rendezvous::report(Record& next) {
  if (failure_) return fail(next, *failure_, /*complete=*/true);
  if (workers_done_) {
    next.participants[group_rank_].done = true;
    close_if_done(next);
  }
  if (served_ && options_.round_store && group_rank_ == 0 && next.phase == Phase::kRunning)
    next.store = served_;
}

void Rendezvous::leave_record(Record& next, absl::Time now) {
  const absl::Status left =
      absl::CancelledError(absl::StrCat("the node ", *leave_reason_, ", the job goes on"));
  // Without the store there is no job.
  if (options_.hosts_store) {
    return close_failed(next, node_failure(me_.node,
                                           absl::StrCat("node ", me_.node.host,
                                                        ", which serves the job's store, ", *leave_reason_),
                                           now));
  }
  const bool takes_part = place_ == Place::kParticipant;
  // The others' workers may still need the round's store.
  const bool serves_round = options_.round_store && group_rank_ == 0;
  if (takes_part && !serves_round && next.phase == Phase::kRunning && next.participants[group_rank_].done) {
    return end({.status = left}, now);
  }
  const Settings& settings = next.settings;
  const bool not_begun =
      next.phase == Phase::kJoining && next.round == 0 && settings.min_nodes < settings.max_nodes;
  if (takes_part && !not_begun && count_nodes(next) - 1 < settings.min_nodes) {
    return close_failed(
        next, node_failure(me_.node, absl::StrCat("node ", me_.node.host, " ", *leave_reason_), now));
  }
  parting_ = left;
  remove(next, me_.id);
  if (!takes_part) return;
  if (next.phase == Phase::kRunning) {
    next.failure.reset();
    return begin_next(next, /*complete=*/true);
  }
  next.call_off = std::max(next.call_off - 1, 0);
  let_in_waiting(next);
  run_if_complete(next, now);
}

void Rendezvous::remove_lost(Record& next, absl::Time now) {
  std::optional<Failure> failure;
  const Record& before = *record_;
  for (const std::vector<Member>* members : {&before.participants, &before.waiting}) {
    for (const Member& member : *members) {
      if (member.id == me_.id || !watch_.lost(member.id, now)) continue;
      const bool takes_part = members == &before.participants;
      if (takes_part && next.phase == Phase::kRunning) {
        if (member.done) continue;
        if (!failure) {
          failure = node_failure(
              member.node,
              absl::StrCat(
                  "node ", member.node.host, " was lost: its launcher has not been heard for ",
                  absl::FormatDuration(options_.keep_alive_interval * options_.keep_alive_max_attempt)),
              now);
        }
      }
      if (takes_part) next.call_off = 0;
      remove(next, member.id);
    }
  }
  if (failure) fail(next, *std::move(failure), /*complete=*/false);
}

void Rendezvous::run_if_complete(Record& next, absl::Time now) const {
  if (next.phase != Phase::kJoining || !may_run(next)) return;
  const int count = static_cast<int>(next.participants.size());
  const bool called = options_.last_call_timeout <= absl::ZeroDuration() ||
                      (call_since_ && now >= *call_since_ + options_.last_call_timeout);
  if (count == next.settings.max_nodes || (next.call_off > 0 && count >= next.call_off) || called) run(next);
}

void Rendezvous::propose(Record next) {
  ++next.version;
  change_ = {.expected = bytes_, .desired = encode(next)};
}

void Rendezvous::locate() {
  place_ = Place::kOutside;
  group_rank_ = -1;
  for (std::size_t i = 0; i < record_->participants.size(); ++i) {
    if (record_->participants[i].id != me_.id) continue;
    place_ = Place::kParticipant;
    group_rank_ = static_cast<int>(i);
  }
  for (const Member& member : record_->waiting) {
    if (member.id == me_.id) place_ = Place::kWaiting;
  }
  if (place_ != Place::kOutside) entered_ = ever_entered_ = true;
}

void Rendezvous::follow_times(absl::Time now) {
  if (timed_round_ != record_->round) {
    joining_since_.reset();
    call_since_.reset();
    timed_round_ = record_->round;
  }
  const bool joining = record_->phase == Phase::kJoining;
  if (!joining || place_ != Place::kParticipant) {
    joining_since_.reset();
  } else if (!joining_since_) {
    joining_since_ = now;
  }
  if (!joining || static_cast<int>(record_->participants.size()) < record_->settings.min_nodes) {
    call_since_.reset();
  } else if (!call_since_) {
    call_since_ = now;
  }
}

void Rendezvous::choose_watched() {
  std::vector<std::string> chosen;
  // Who cannot enter for another's rank looks after the rest as well: all who are in may be dead.
  const bool entering = place_ == Place::kOutside && !entered_;
  const Member* other = entering ? find_rank(*record_, me_) : nullptr;
  if (place_ == Place::kOutside && other == nullptr) return watch_.choose({});
  if (other != nullptr) chosen.push_back(other->id);
  // The next ones in the ring of all.
  std::vector<const Member*> ring;
  std::size_t first = 0;
  for (const std::vector<Member>* members : {&record_->participants, &record_->waiting}) {
    for (const Member& member : *members) {
      if (member.id == me_.id) {
        first = ring.size();
      } else if (!member.done && &member != other) {
        ring.push_back(&member);
      }
    }
  }
  for (std::size_t i = 0; i < ring.size() && static_cast<int>(i) < options_.watched; ++i) {
    chosen.push_back(ring[(first + i) % ring.size()]->id);
  }
  watch_.choose(chosen);
}

Failure Rendezvous::node_failure(const Node& node, std::string message, absl::Time now) const {
  return {.host = node.host, .time = now + options_.to_time_of_day, .message = std::move(message)};
}

}  // namespace gradwire::rendezvous
