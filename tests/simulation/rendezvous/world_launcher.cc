#include <utility>

#include "gradwire/tests/simulation/rendezvous/world.h"

namespace gradwire::rendezvous_simulation {

using rendezvous::RendezvousUpdate;

void World::say(SimNode& node, std::function<void(Machine&, absl::Time)> what) {
  node.said.push_back(std::move(what));
  // Heard between two calls; a wait for another record is cut into slices.
  constexpr Time kSlice = 200 * kMillisecond;
  if (node.call == kNoCall) {
    scheduler_.add(now_, Kind::kDrive, node.index);
  } else if (calls_[node.call].kind == Call::Kind::kWatch) {
    scheduler_.add(now_ + random_.between(0, kSlice), Kind::kSlice, node.index, node.call);
  }
}

void World::notice_news(SimNode& node) {
  const RendezvousUpdate& update = node.machine->update();
  if (update.kind == node.told && update.round.round == node.told_round) return;
  node.told = update.kind;
  node.told_round = update.round.round;
  scheduler_.add(now_ + random_.between(0, 20 * kMillisecond), Kind::kNews, node.index);
  if (update.kind == RendezvousUpdate::Kind::kEnded) check_outcome(node, update.outcome);
}

void World::on_update(SimNode& node) {
  const RendezvousUpdate& update = node.machine->update();
  switch (update.kind) {
    case RendezvousUpdate::Kind::kWait:
      return;
    case RendezvousUpdate::Kind::kServeStore:
      if (node.serving == update.round.round) return;
      node.serving = update.round.round;
      scheduler_.add(now_ + random_.between(0, kSecond), Kind::kServed, node.index, update.round.round);
      return;
    case RendezvousUpdate::Kind::kRun:
      return run_workers(node, update.round);
    case RendezvousUpdate::Kind::kStop:
      if (!node.workers) {
        return say(node, [](Machine& machine, absl::Time now) { machine.ready(now); });
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
    if (node.machine->update().kind != RendezvousUpdate::Kind::kServeStore || node.serving != round) return;
    if (!calm_ && random_.per_mille(scenario_.worker_failures / 4)) {
      trace(node.name(), " cannot serve the store of round ", round);
      return say(node, [](Machine& machine, absl::Time now) {
        machine.workers_failed({.host = "n", .exit_code = 1, .message = "no port"}, now);
      });
    }
    return say(node, [](Machine& machine, absl::Time now) { machine.store_served({"n", 1234}, now); });
  }
  if (node.workers != round) return;
  if (event.kind == Kind::kWorkersGone) {
    trace(node.name(), " has no workers of round ", round, " any more");
    node.workers.reset();
    return say(node, [](Machine& machine, absl::Time now) { machine.ready(now); });
  }
  if (node.stopping || node.work_is_done) return;
  if (event.kind == Kind::kWorkersFail) {
    if (calm_) return;
    trace(node.name(), "'s workers fail");
    const std::string name = node.name();
    say(node, [name](Machine& machine, absl::Time now) {
      machine.workers_failed(
          {.host = name, .rank = 0, .local_rank = 0, .exit_code = 1, .message = "it failed"}, now);
    });
    // The launcher stops the others by itself.
    return stop_workers(node);
  }
  // Until all has settled work goes on.
  if (calm_ && !finishing_) return;
  trace(node.name(), "'s workers are done");
  node.work_is_done = true;
  work_done_.insert({node.machine->id(), round});
  say(node, [](Machine& machine, absl::Time now) { machine.workers_done(now); });
}

}  // namespace gradwire::rendezvous_simulation
