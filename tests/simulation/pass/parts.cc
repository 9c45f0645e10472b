// How Pass handles the messages of other workers. A Part is one worker's part in one pass. The steps are the
// sections that Pass executes with its mutex locked, in the same order. Other events may occur between two
// steps.
#include <algorithm>
#include <utility>

#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

using autograd::GradientRoute;

uint64_t World::add_reply(Part& part, int arrival, bool wave) {
  part.replies.push_back({part.next_reply, arrival, wave});
  return part.next_reply++;
}

std::vector<WaveMessage> World::wave_messages(const Part& part, const Executor::Reach& reach) const {
  std::vector<WaveMessage> messages;
  const auto add = [&](int to, bool needed, const Tensors& tensors) {
    auto found = std::find_if(messages.begin(), messages.end(), [&](const WaveMessage& each) {
      return each.to == to && each.needed == needed;
    });
    if (found == messages.end()) found = messages.insert(messages.end(), {to, needed, {}});
    found->tensors.push_back(tensors);
  };
  const Graph& graph = graph_of(part);
  for (const Tensors& each : reach.marked) add(graph.messages[each.message].from, false, each);
  for (const Tensors& each : reach.needed) add(graph.messages[each.message].to, true, each);
  return messages;
}

std::vector<uint64_t> World::receivers_of(const std::vector<WaveMessage>& messages) {
  std::vector<uint64_t> receivers;
  for (const WaveMessage& message : messages) receivers.push_back(incarnation(message.to));
  return receivers;
}

void World::serve_wave(int index) {
  const Arrival& arrival = arrivals_[index];
  const Call& call = calls_[arrival.call];
  Part& part = *parts_[arrival.part];
  if (coverage_ != nullptr) {
    const std::pair<int, uint64_t> key{call.from, call.number};
    const bool repeated =
        std::find(part.marks_received.begin(), part.marks_received.end(), key) != part.marks_received.end();
    if (!repeated) part.marks_received.push_back(key);
    if (call.kind == Kind::kMark) cover(part, repeated ? Coverage::kMarkRepeated : Coverage::kMark);
    if (call.kind == Kind::kNeeded) cover(part, repeated ? Coverage::kNeededRepeated : Coverage::kNeeded);
  }
  part.took_part = true;
  Actions actions;
  std::vector<WaveMessage> messages;
  std::vector<uint64_t> numbers;
  if (part.state.begin_mark(incarnation(call.from), call.number, add_reply(part, index, true), actions)) {
    absl::Status status =
        part.state.ended() ? absl::AbortedError("the backward pass has ended") : absl::OkStatus();
    Executor::Reach reach;
    for (const Tensors& each : call.tensors) {
      if (!status.ok()) break;
      if (call.kind == Kind::kMark) {
        part.executor.mark_outputs(each, reach);
      } else if (!part.executor.need_outputs(each, reach)) {
        status = absl::InvalidArgumentError("NEEDED names tensors that this worker has not marked");
      }
    }
    if (status.ok()) {
      messages = wave_messages(part, reach);
      part.state.counted(part.executor.take_counted());
      numbers = part.state.end_walk(receivers_of(messages), actions);
    } else {
      part.state.fail(status, actions);
    }
  }
  apply_actions(arrival.part, std::move(actions), std::move(messages), std::move(numbers));
  notice_lost(arrival.part, call.from);
  notice_lost(arrival.part, passes_[part.pass].root);
}

void World::begin(int part) {
  const PassInfo& pass = passes_[parts_[part]->pass];
  if (pass.fast) begin_fast(part);
  if (pass.planned) begin_planned(part);
}

void World::begin_fast(int index) {
  Part& part = *parts_[index];
  if (std::exchange(part.begun, true) || part.state.ended()) return;
  Executor::Reach reach;
  uint32_t receivers = 0;
  const Graph& graph = graph_of(part);
  for (std::size_t m = 0; m < graph.messages.size(); ++m) {
    const GraphMessage& message = graph.messages[m];
    if (message.from != part.worker) continue;
    const auto all = static_cast<uint8_t>((1 << message.tensors.size()) - 1);
    part.executor.mark_outputs({static_cast<int>(m), all}, reach);
    if (message.to == part.worker) continue;
    part.state.depends_on(incarnation(message.to));
    receivers |= 1u << message.to;
  }
  part.state.counted(part.executor.take_counted());
  for (int w = 0; w < scenario_.workers; ++w) {
    if (receivers & 1u << w) notice_lost(index, w);
  }
}

void World::notice_lost(int index, int other) {
  if (workers_[parts_[index]->worker].lost & 1u << other) worker_lost(index, other);
}

bool World::begin_planned(int index) {
  Part& part = *parts_[index];
  const PassInfo& pass = passes_[part.pass];
  if (std::exchange(part.begun, true) || part.state.ended()) return false;
  bool leads_on = false;
  if (part.worker == pass.root) {
    for (const GradientRoute& plan : pass.plan->parts()) leads_on = mark_planned(part, plan) || leads_on;
  } else if (const GradientRoute* plan = pass.plan->part_of(incarnation(part.worker)); plan != nullptr) {
    leads_on = mark_planned(part, *plan);
  } else {
    violate("the root contacts a worker that has no part in the plan");
  }
  part.state.counted(part.executor.take_counted());
  return leads_on;
}

bool World::mark_planned(Part& part, const GradientRoute& plan) {
  bool leads_on = false;
  const Graph& graph = graph_of(part);
  for (const auto& [message, outputs] : plan.messages()) {
    if (worker_of(message.first) != part.worker) continue;
    Tensors tensors{graph.find(part.worker, message.second), 0};
    if (tensors.message < 0) {
      violate("the plan names a message that was not sent");
      return leads_on;
    }
    for (const GradientRoute& route : graph.messages[tensors.message].route) {
      leads_on = leads_on || route.tensors() > 0;
    }
    for (uint32_t output : outputs) tensors.mask |= 1 << output;
    Executor::Reach reach;
    part.executor.mark_outputs(tensors, reach);
    for (const Tensors& reached : reach.marked) {
      const GraphMessage& next = graph.messages[reached.message];
      for (uint32_t i = 0; i < next.tensors.size(); ++i) {
        if (reached.mask & 1 << i && !plan.contains(incarnation(next.from), next.number, i)) {
          violate("the plan lacks a tensor");
        }
      }
    }
  }
  return leads_on;
}

void World::begin_run(Part& part) {
  if (!passes_[part.pass].inputs_only || part.ended) return;
  part.executor.begin_run();
  part.state.counted(part.executor.take_counted());
}

void World::serve_run(int index) {
  Arrival& arrival = arrivals_[index];
  const Call& call = calls_[arrival.call];
  Part& part = *parts_[arrival.part];
  PassInfo& pass = passes_[part.pass];
  if (arrival.stage == 1) {
    if (coverage_ != nullptr) {
      const int message = call.tensors[0].message;
      const bool repeated = std::find(part.runs_received.begin(), part.runs_received.end(), message) !=
                            part.runs_received.end();
      if (!repeated) part.runs_received.push_back(message);
      cover(part, repeated ? Coverage::kRunRepeated : Coverage::kRun);
    }
    part.took_part = true;
    begin(arrival.part);
    if (continue_later(index)) return;
  }
  Actions actions;
  const bool finishes = pass.planned && call.from == pass.root && call.from != part.worker;
  const absl::Status status = part.state.status();
  if (status.ok()) begin_run(part);
  if (status.ok() && part.state.run_arrived(incarnation(call.from), call.number)) {
    if (part.executor.deliver_message(call.tensors[0])) {
      ++pass.messages_arrived;
      part.state.ran(1, actions);
    } else {
      part.state.fail(absl::InvalidArgumentError("unexpected gradients"), actions);
    }
  }
  if (finishes) part.state.finish_asked(add_reply(part, index, false), actions);
  if (!finishes) reply(index, status);
  apply_actions(arrival.part, std::move(actions), {}, {}, true);
  notice_lost(arrival.part, call.from);
  notice_lost(arrival.part, pass.root);
}

void World::serve_finish(int index) {
  Arrival& arrival = arrivals_[index];
  Part& part = *parts_[arrival.part];
  if (arrival.stage == 1) {
    cover(part, std::exchange(part.finish_received, true) ? Coverage::kFinishRepeated : Coverage::kFinish);
    part.took_part = true;
    begin(arrival.part);
    if (continue_later(index)) return;
  }
  Actions actions;
  if (!part.state.ended()) begin_run(part);
  part.state.finish_asked(add_reply(part, index, false), actions);
  apply_actions(arrival.part, std::move(actions));
  notice_lost(arrival.part, passes_[part.pass].root);
}

void World::drain(int index) {
  Part& part = *parts_[index];
  if (part.draining) return;
  if (!part.state.ended() && part.executor.next(part.task, random_)) {
    part.draining = true;
    scheduler_.add(now_ + (preempted() ? some_delay() : 0), Event::Kind::kRan, index);
  }
}

void World::ran(int index) {
  Part& part = *parts_[index];
  PassInfo& pass = passes_[part.pass];
  if (!workers_[part.worker].alive) return;
  absl::Status status;
  if (++nodes_run_ == scenario_.node_error) {
    trace("a node fails at ", worker_name(part.worker), " in ", name(pass));
    cover(part, Coverage::kNodeFailed);
    pass.node_failed = true;
    status = absl::UnknownError(absl::StrCat("node failed at ", worker_name(part.worker)));
  } else {
    cover(part, Coverage::kNodeRan);
    const uint8_t kept = part.executor.kept(part.task);
    for (int i = 0; i < 8; ++i) {
      if (kept & 1 << i && ++pass.kept[part.task.node][i] > 1) violate("a gradient is kept twice");
    }
  }
  part.draining = false;
  if (!part.state.ended()) {
    if (status.ok()) part.executor.finished(part.task);
    if (!status.ok()) {
      part.state.fail(status, part.drained);
    } else if (part.task.shipped != 0) {
      const Tensors tensors{graph_of(part).nodes[part.task.node].message, part.task.shipped};
      part.state.shipping(incarnation(graph_of(part).messages[tensors.message].from));
      part.state.ran(1, part.drained);
      part.draining = true;  // ship() may fail at once and call drain() again; `draining` stops that call.
      ship(index, tensors);
      part.draining = false;
    } else {
      part.state.ran(1, part.drained);
    }
    drain(index);
    if (part.draining) return;
  }
  apply_actions(index, std::exchange(part.drained, {}));
}

void World::ship(int index, const Tensors& tensors) {
  Part& part = *parts_[index];
  const GraphMessage& message = graph_of(part).messages[tensors.message];
  count_shipped(passes_[part.pass], tensors);
  call({.kind = Kind::kRun,
        .from = part.worker,
        .to = message.from,
        .pass = part.pass,
        .context = passes_[part.pass].context,
        .part = index,
        .number = message.number,
        .tensors = {tensors}});
}

}  // namespace gradwire::pass_simulation
