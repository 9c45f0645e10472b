#include <utility>

#include "gradwire/tests/simulation/rendezvous/world.h"

namespace gradwire::rendezvous_simulation {

using rendezvous::RendezvousUpdate;

void World::report(SimNode& node, std::function<void(Machine&, absl::Time)> event) {
  node.reports.push_back(std::move(event));
  // The client reads a report between two calls. A watch of the record is split into slices of this length.
  constexpr Time kSlice = 200 * kMillisecond;
  if (node.call == kNoCall) {
    scheduler_.add(now_, Kind::kDrive, node.index);
  } else if (calls_[node.call].kind == Call::Kind::kWatch) {
    scheduler_.add(now_ + random_.between(0, kSlice), Kind::kSlice, node.index, node.call);
  }
}

void World::notice_update(SimNode& node) {
  const RendezvousUpdate& update = node.machine->update();
  if (update.kind == node.last_kind && update.round.round == node.last_kind_round) return;
  node.last_kind = update.kind;
  node.last_kind_round = update.round.round;
  scheduler_.add(now_ + random_.between(0, 20 * kMillisecond), Kind::kUpdate, node.index);
  if (update.kind == RendezvousUpdate::Kind::kEnded) check_outcome(node, update.outcome);
}

void World::on_update(SimNode& node) {
  const RendezvousUpdate& update = node.machine->update();
  switch (update.kind) {
    case RendezvousUpdate::Kind::kWait:
      return;
    case RendezvousUpdate::Kind::kPrepareStore:
      if (node.serving == update.round.round) return;
      node.serving = update.round.round;
      scheduler_.add(now_ + random_.between(0, kSecond), Kind::kServed, node.index, update.round.round);
      return;
    case RendezvousUpdate::Kind::kRun:
      return run_workers(node, update.round);
    case RendezvousUpdate::Kind::kStop:
      if (!node.workers) {
        return report(node, [](Machine& machine, absl::Time now) { machine.ready(now); });
      }
      return stop_workers(node);
    case RendezvousUpdate::Kind::kEnded:
      return stop_workers(node);
  }
}

void World::run_workers(SimNode& node, const rendezvous::RoundInfo& round) {
  if (node.workers == round.round) return;
  check_run(node, round);
  trace(node.name(), " runs round ", round.round, " as ", round.group_rank, " of ", round.nodes.size());
  node.workers = node.last_round = round.round;
  node.work_is_done = node.stopping = false;
  const Time work = finishing_ ? kSecond : scenario_.work;
  if (!calm_ && random_.per_mille(scenario_.worker_failures)) {
    scheduler_.add(now_ + random_.between(0, work), Kind::kWorkersFail, node.index, round.round);
  } else {
    scheduler_.add(now_ + work + random_.between(0, kSecond), Kind::kWorkersDone, node.index, round.round);
  }
}

void World::stop_workers(SimNode& node) {
  if (!node.workers || node.stopping) return;
  node.stopping = true;
  scheduler_.add(now_ + random_.between(0, calm_ ? kSecond : scenario_.grace), Kind::kWorkersGone, node.index,
                 *node.workers);
}

void World::workers_event(SimNode& node, const Event& event) {
  const int64_t round = event.arg;
  if (event.kind == Kind::kServed) {
    if (node.machine->update().kind != RendezvousUpdate::Kind::kPrepareStore || node.serving != round) return;
    if (!calm_ && random_.per_mille(scenario_.worker_failures / 4)) {
      trace(node.name(), " cannot serve the store of round ", round);
      return report(node, [](Machine& machine, absl::Time now) {
        machine.workers_failed({.host = "n", .exit_code = 1, .message = "no port"}, now);
      });
    }
    return report(node, [](Machine& machine, absl::Time now) { machine.store_ready({"n", 1234}, now); });
  }
  if (node.workers != round) return;
  if (event.kind == Kind::kWorkersGone) {
    trace(node.name(), " has no workers of round ", round, " any more");
    node.workers.reset();
    return report(node, [](Machine& machine, absl::Time now) { machine.ready(now); });
  }
  if (node.stopping || node.work_is_done) return;
  if (event.kind == Kind::kWorkersFail) {
    if (calm_) return;
    trace(node.name(), "'s workers fail");
    const std::string name = node.name();
    report(node, [name](Machine& machine, absl::Time now) {
      machine.workers_failed(
          {.host = name, .rank = 0, .local_rank = 0, .exit_code = 1, .message = "it failed"}, now);
    });
    // The launcher stops the other workers by itself.
    return stop_workers(node);
  }
  // Workers do not finish before all nodes have settled.
  if (calm_ && !finishing_) return;
  trace(node.name(), "'s workers are done");
  node.work_is_done = true;
  work_done_.insert({node.machine->id(), round});
  report(node, [](Machine& machine, absl::Time now) { machine.workers_done(now); });
}

}  // namespace gradwire::rendezvous_simulation
