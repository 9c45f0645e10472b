// The steps of backward() and of the Pass at the root.
#include <utility>

#include "absl/container/btree_set.h"
#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

using autograd::GradientRoute;

void World::begin_pass(int index) {
  PassInfo& pass = passes_[index];
  if (!workers_[pass.root].alive) return;
  pass.begun = true;
  trace(worker_name(pass.root), " begins ", name(pass));
  pass.part = find_pass(pass.root, index);
  if (pass.part < 0) return complete_pass(index, absl::NotFoundError("the context was released"));
  Part& part = *parts_[pass.part];
  part.took_part = true;
  uint32_t owners = 0;
  for (const Edge& input : pass.inputs) {
    const int owner = graph_of(part).nodes[input.node].worker;
    if (owner == pass.root) {
      part.executor.add_input(input);
    } else {
      owners |= 1u << owner;
    }
  }
  pass.unanswered_inputs = __builtin_popcount(owners);
  if (owners == 0) return start(index);
  for (int owner = 0; owner < scenario_.workers; ++owner) {
    if (!(owners & 1u << owner)) continue;
    // Record the owner of the input, so that it is notified of the context's end.
    touch(pass.root, pass.context, owner);
    call({.kind = Kind::kInputs,
          .from = pass.root,
          .to = owner,
          .pass = index,
          .context = pass.context,
          .part = pass.part});
  }
}

void World::start(int index) {
  PassInfo& pass = passes_[index];
  Part& part = *parts_[pass.part];
  if (part.state.ended()) return;
  Actions actions;
  Executor::Reach reach;
  std::vector<WaveMessage> messages;
  std::vector<uint64_t> numbers;
  part.executor.mark_roots(pass.roots, reach);
  part.state.counted(part.executor.take_counted());
  if (pass.inputs_only) part.state.counted(1);
  bool known = !pass.fast && !pass.inputs_only;
  autograd::Plan plan(incarnation(pass.root));
  const Graph& graph = graph_of(part);
  for (const Tensors& reached : reach.marked) {
    const GraphMessage& message = graph.messages[reached.message];
    if (!known || message.route.empty()) {
      known = false;
      break;
    }
    for (uint32_t i = 0; i < message.tensors.size(); ++i) {
      if (!(reached.mask & 1 << i)) continue;
      GradientRoute tensors = message.route[i];
      tensors.add(incarnation(message.from), message.number, i);
      plan.add(std::move(tensors));
    }
  }
  known = known && plan.fits();
  if (pass.fast) {
    actions.start_run = true;
    begin_fast(pass.part);
  } else if (known) {
    pass.planned = true;
    // The root need not send FINISH to workers that it ships to in any case: their RUN has the same effect.
    absl::btree_set<uint64_t> participants, shipped_to;
    for (const GradientRoute& route : plan.parts()) {
      for (const auto& [message, outputs] : route.messages()) participants.insert(message.first);
    }
    pass.plan = std::move(plan);
    for (const Tensors& reached : reach.marked) {
      shipped_to.insert(incarnation(graph.messages[reached.message].from));
    }
    if (begin_planned(pass.part)) shipped_to.clear();
    if (part.state.ended()) return;
    part.state.begin_planned({participants.begin(), participants.end()},
                             {shipped_to.begin(), shipped_to.end()}, actions);
  } else {
    part.state.begin_root();
    messages = wave_messages(part, reach);
    numbers = part.state.end_walk(receivers_of(messages), actions);
  }
  apply_actions(pass.part, std::move(actions), std::move(messages), std::move(numbers));
}

void World::run_roots(int index) {
  PassInfo& pass = passes_[index];
  Part& part = *parts_[pass.part];
  if (!workers_[pass.root].alive || part.state.ended()) return;
  trace(worker_name(pass.root), " delivers the gradients of the roots of ", name(pass));
  begin_run(part);
  part.executor.deliver_roots();
  Actions actions;
  part.state.ran(pass.inputs_only ? 2 : 1, actions);
  apply_actions(pass.part, std::move(actions), {}, {}, true);
}

void World::complete_pass(int index, const absl::Status& status) {
  PassInfo& pass = passes_[index];
  if (pass.completed) return violate(absl::StrCat(name(pass), " ends twice"));
  pass.completed = true;
  pass.status = status;
  trace(name(pass), " has ended: ", status.ok() ? "done" : status.message());
  if (!status.ok()) check_failure(pass);
  for (std::size_t p = 0; p < passes_.size(); ++p) {
    if (passes_[p].after == index) scheduler_.add(now_, Event::Kind::kBegin, p);
  }
}

}  // namespace gradwire::pass_simulation
