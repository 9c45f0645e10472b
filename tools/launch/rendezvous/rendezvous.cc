#include "gradwire/tools/launch/rendezvous/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/launch/rendezvous/messages.h"
#include "gradwire/tools/launch/rendezvous/transitions.h"

namespace gradwire::rendezvous {
namespace {

bool runs_here(int64_t round, const View& view) {
  return view.record() != nullptr && view.record()->phase == Phase::kRunning && view.takes_part() &&
         view.record()->round == round;
}

}  // namespace

void RoundWorkers::engage(const View& view) {
  const Record& record = *view.record();
  engaged_ = true;
  clear_reports();
  info_ = {.round = record.round,
           .group_rank = view.group_rank(),
           .restarts_used = record.restarts_used,
           .max_restarts = record.settings.max_restarts,
           .run_id = record.run_id,
           .store = record.store,
           .ended_before = record.failure};
  for (const Member& member : record.participants) info_.nodes.push_back(member.node);
}

// A report that does not fit is ignored: it may have been posted before the launcher had the newest update.
// The launcher ends its workers after kStop, and after it has reported their result.
bool RoundWorkers::ready(RendezvousUpdate::Kind last_kind) {
  if (!engaged_ || !(last_kind == RendezvousUpdate::Kind::kStop || failure_ || done_)) return false;
  engaged_ = false;
  return true;
}

bool RoundWorkers::failed(const Failure& failure) {
  if (!engaged_ || failure_ || done_) return false;
  failure_ = failure;
  return true;
}

bool RoundWorkers::done() {
  if (!engaged_ || failure_) return false;
  done_ = true;
  return true;
}

bool RoundWorkers::store_ready(const Address& address) {
  if (engaged_) served_ = address;
  return engaged_;
}

void RoundWorkers::clear_reports() {
  failure_.reset();
  done_ = false;
  served_.reset();
}

void RoundWorkers::report(Record& next, int group_rank) const {
  if (failure_) return fail(next, *failure_, /*complete=*/true);
  if (done_) {
    next.participants[group_rank].done = true;
    close_if_done(next);
  }
  if (served_ && prepares_store_ && group_rank == 0 && next.phase == Phase::kRunning) next.store = served_;
}

// While the launcher has workers, its task depends on the record: stop if the round does not run here any
// more, serve the store if it has none yet, else run. An update for the same round and task is not repeated.
void RoundWorkers::update(RendezvousUpdate& update, const View& view) {
  if (!engaged_) {
    if (update.kind != RendezvousUpdate::Kind::kWait) update = {};
    return;
  }
  const RendezvousUpdate::Kind kind = !runs_here(info_.round, view) ? RendezvousUpdate::Kind::kStop
                                      : prepares_store_ && !view.record()->store
                                          ? RendezvousUpdate::Kind::kPrepareStore
                                          : RendezvousUpdate::Kind::kRun;
  if (kind == update.kind && update.round.round == info_.round) return;
  if (kind == RendezvousUpdate::Kind::kRun) info_.store = view.record()->store;
  update.kind = kind;
  update.round = info_;
}

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

namespace {

// A failure of a whole node. `time` is a time of day.
Failure node_failure(const Node& node, std::string message, absl::Time time) {
  return {.host = node.host, .time = time, .message = std::move(message)};
}

}  // namespace

// 1. Without a record: write the first one, if the store was read and had no record.
// 2. End if the record is of another job, or the job is closed.
// 3. If the node was removed as lost, or has not entered: see advance_removed() and advance_outside().
// 4. In the record: compute the record that should follow from the current one, and propose it if it
//    differs. The proposal is a compare_set against the bytes that were read. If another node is faster,
//    this node reads its change and starts again from there, so nothing is overwritten.
// 5. Choose the nodes to watch, and update the launcher's task.
void Rendezvous::advance(absl::Time now) {
  if (ended_) return;
  change_.reset();
  if (view_.record() == nullptr) {
    if (leave_reason_) return end({.status = absl::CancelledError("left before the job began")}, now);
    if (!view_.absent()) return;
    Record first = first_record(view_.me(), options_.settings, options_.run_id);
    run_if_complete(first, now);
    return propose(std::move(first));
  }
  const Record& record = *view_.record();
  const bool named = options_.run_id != kNoRunId && record.run_id != kNoRunId;
  if (!view_.ever_entered() && named && record.run_id != options_.run_id) {
    return end({.status = other_job(record, options_.run_id)}, now);
  }
  if (record.phase == Phase::kClosed) {
    return end(view_.ever_entered() ? outcome_of(record) : Outcome{.status = too_late(record)}, now);
  }
  times_.follow(record, view_.takes_part(), now);
  if (view_.outside() && view_.entered()) advance_removed(now);
  if (ended_) return;
  if (view_.outside()) {
    if (!view_.entered()) advance_outside(now);
  } else {
    parting_.reset();
    Record next = record;
    record.phase == Phase::kJoining ? joining(next, now) : running(next, now);
    if (!ended_ && next != record) propose(std::move(next));
  }
  if (ended_) return;
  watch_.choose(view_.watched(options_.watched));
  workers_.update(update_, view_);
  update_.wait = describe_wait(record, view_.group_rank(), options_.last_call_timeout);
}

// The others regard this node as dead and may have started a round without it. Its workers must end before
// it enters again: they would use the addresses and ranks of a round that is over. It enters under a new id,
// because the old beat counts as lost.
void Rendezvous::advance_removed(absl::Time now) {
  if (parting_) return end({.status = *parting_}, now);
  if (leave_reason_) return end({.status = absl::CancelledError("left after it was removed as lost")}, now);
  if (workers_.engaged()) return;  // until ready()
  workers_.clear_reports();
  view_.change_id();
  next_beat_ = now;
}

// 1. Refuse to enter with other settings.
// 2. If a node in the record has this node's rank, wait until that node moves its beat, which is an error,
//    or is lost, which removes it.
// 3. Adopt or set the job's id, and enter.
// 4. If the round is complete now, begin it in the same change.
void Rendezvous::advance_outside(absl::Time now) {
  if (leave_reason_) return end({.status = absl::CancelledError("left before it entered the job")}, now);
  const Record& record = *view_.record();
  if (record.settings != options_.settings) {
    return end({.status = other_settings(record, options_.settings)}, now);
  }
  Record next = record;
  if (const Member* other = find_rank(record, view_.me())) {
    if (watch_.has_moved(other->id)) return end({.status = rank_taken(view_.me(), *other)}, now);
    remove_lost(next, now);
    if (next == record) return;
    if (find_rank(next, view_.me()) != nullptr || next.phase == Phase::kClosed)
      return propose(std::move(next));
  }
  if (count_nodes(next) >= kMaxNodes) {
    return end({.status = absl::ResourceExhaustedError(
                    absl::StrCat("the job already has ", kMaxNodes, " nodes, the limit"))},
               now);
  }
  // Only some nodes may know the job's id. The first node that knows it writes it into the record, before any
  // worker has started under another id.
  if (next.run_id == kNoRunId && next.phase == Phase::kJoining && next.round == 0)
    next.run_id = options_.run_id;
  enter(next, view_.me());
  run_if_complete(next, now);
  propose(std::move(next));
}

// 1. Report ready as soon as the workers of the previous round have ended.
// 2. Remove lost nodes and fill up from the waiting ones.
// 3. Begin the round if it is complete.
// 4. If it is not within join_timeout, leave with an error that names the nodes that are missing. `parting_`
//    keeps the error until the removal has been written.
void Rendezvous::joining(Record& next, absl::Time now) {
  if (leave_reason_) return leave_record(next, now);
  if (view_.takes_part() && !workers_.engaged()) next.participants[view_.group_rank()].ready = true;
  remove_lost(next, now);
  admit_waiting(next);
  run_if_complete(next, now);
  if (next.phase != Phase::kJoining || !times_.overdue(now)) return;
  parting_ = too_few(*view_.record(), options_.join_timeout);
  remove(next, id());
  admit_waiting(next);
}

// 1. Start the workers of a new round. If the round's store must be prepared, only group rank 0 starts before
//    the record has the store's address: it prepares the store.
// 2. Write the reports of the launcher. They may close the job or end the round.
// 3. Leave, remove lost nodes, or make room for a new node.
void Rendezvous::running(Record& next, absl::Time now) {
  if (view_.takes_part()) {
    const bool startable =
        options_.round_store == RoundStore::kReady || next.store || view_.group_rank() == 0;
    if (next.round > workers_.round() && !workers_.engaged() && startable) workers_.engage(view_);
    if (next.round == workers_.round()) workers_.report(next, view_.group_rank());
    if (next.phase != Phase::kRunning) return;
  }
  // Leave only after the result of the workers has been written.
  if (leave_reason_ && next == *view_.record()) return leave_record(next, now);
  remove_lost(next, now);
  if (next.phase == Phase::kRunning && could_grow(next)) {
    next.failure.reset();
    begin_next(next, /*complete=*/false);
  }
}

// The cases, in this order:
// 1. This node serves the job's store: close the job.
// 2. Its workers are done and no other node needs it: leave without a change. The others count it as done.
// 3. Too few nodes would stay: close the job.
// 4. Otherwise remove this node. If the round runs, the other nodes form the next one, because the ranks
//    change. If it is being formed, it may be complete without this node.
void Rendezvous::leave_record(Record& next, absl::Time now) {
  const absl::Status left =
      absl::CancelledError(absl::StrCat("the node ", *leave_reason_, ", the job continues"));
  const Node& me = view_.me().node;
  // The job cannot continue without its store.
  if (options_.hosts_store) {
    return close_failed(
        next,
        node_failure(me, absl::StrCat("node ", me.host, ", which serves the job's store, ", *leave_reason_),
                     now + options_.to_time_of_day));
  }
  const bool takes_part = view_.takes_part();
  // The others' workers may still need the round's store.
  const bool serves_round = options_.round_store == RoundStore::kServed && view_.group_rank() == 0;
  if (takes_part && !serves_round && next.phase == Phase::kRunning &&
      next.participants[view_.group_rank()].done) {
    return end({.status = left}, now);
  }
  const Settings& settings = next.settings;
  const bool not_begun =
      next.phase == Phase::kJoining && next.round == 0 && settings.min_nodes < settings.max_nodes;
  if (takes_part && !not_begun && count_nodes(next) - 1 < settings.min_nodes) {
    return close_failed(next, node_failure(me, absl::StrCat("node ", me.host, " ", *leave_reason_),
                                           now + options_.to_time_of_day));
  }
  parting_ = left;
  remove(next, id());
  if (!takes_part) return;
  if (next.phase == Phase::kRunning) {
    next.failure.reset();
    return begin_next(next, /*complete=*/true);
  }
  next.call_off = std::max(next.call_off - 1, 0);
  admit_waiting(next);
  run_if_complete(next, now);
}

// A lost node that is done is ignored: it has ended on purpose. A lost participant of a running round costs
// a restart, one for all nodes that are lost at the same time. In any other case the node is only removed.
// Several nodes may detect the loss; the first compare_set counts, and the others then find the node
// removed.
void Rendezvous::remove_lost(Record& next, absl::Time now) {
  std::optional<Failure> failure;
  const Record& before = *view_.record();
  for (const std::vector<Member>* members : {&before.participants, &before.waiting}) {
    for (const Member& member : *members) {
      if (member.id == id() || !watch_.lost(member.id, now)) continue;
      const bool takes_part = members == &before.participants;
      if (takes_part && next.phase == Phase::kRunning) {
        if (member.done) continue;
        if (!failure) {
          failure = node_failure(
              member.node,
              absl::StrCat(
                  "node ", member.node.host, " was lost: no heartbeat from its launcher for ",
                  absl::FormatDuration(options_.keep_alive_interval * options_.keep_alive_max_attempt)),
              now + options_.to_time_of_day);
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
  if (count == next.settings.max_nodes || (next.call_off > 0 && count >= next.call_off) ||
      times_.last_call_over(now))
    run(next);
}

// The new version makes the bytes unlike those of any earlier record, so a delayed compare_set cannot
// succeed.
void Rendezvous::propose(Record next) {
  ++next.version;
  change_ = {.expected = view_.bytes(), .desired = encode(next)};
}

}  // namespace gradwire::rendezvous
