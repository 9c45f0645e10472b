#include "gradwire/tools/launch/rendezvous/round_workers.h"

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

}  // namespace gradwire::rendezvous
