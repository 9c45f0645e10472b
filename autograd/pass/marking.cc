#include "gradwire/autograd/pass/marking.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/base/error.h"

namespace gradwire::autograd {
namespace {

// Internal if a walk reached a tensor that this worker's part of the plan does not contain.
absl::Status check_planned(const GradientRoute& part, const LocalExecutor::Reach& reach) {
  for (const LocalExecutor::Reached& reached : reach.marked) {
    const rpc::Worker& sender = reached.node->sender();
    for (uint32_t output : reached.outputs) {
      if (part.contains(sender.incarnation, reached.node->message(), output)) continue;
      return absl::InternalError(
          absl::StrCat("incomplete plan of a backward pass: it does not contain tensor ", output,
                       " of message ", reached.node->message(), " from worker \"", sender.name, "\""));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// 1. Collect one message for each receiver and kind. The number of workers is small, so the search is
//    linear.
// 2. Record all messages in the state machine, which allocates their numbers and then waits for their
//    answers. This must happen in the critical section of the walk, because the state machine adds them to
//    the walk that was begun last; and before any of them is sent, because the first answer must not end the
//    wave.
std::vector<MarkingWalk::Message> MarkingWalk::end_walk(const LocalExecutor::Reach& reach,
                                                        PassPart::Locked& locked) {
  std::vector<Message> messages;
  const auto add = [&](uint64_t to, bool needed, uint64_t message, const std::vector<uint32_t>& outputs) {
    auto found = std::find_if(messages.begin(), messages.end(),
                              [&](const Message& each) { return each.to == to && each.needed == needed; });
    if (found == messages.end()) found = messages.insert(messages.end(), {to, needed, {}});
    proto::SentTensors& tensors = *found->tensors.Add();
    tensors.set_message(message);
    tensors.mutable_outputs()->Add(outputs.begin(), outputs.end());
  };
  for (const LocalExecutor::Reached& each : reach.marked) {
    add(each.node->sender().incarnation, false, each.node->message(), each.outputs);
  }
  for (const LocalExecutor::Needed& each : reach.needed) {
    add(each.node->receiver(), true, each.node->message(), each.outputs);
  }
  std::vector<uint64_t> receivers;
  for (const Message& message : messages) receivers.push_back(message.to);
  const std::vector<uint64_t> numbers = locked.state.end_walk(receivers, locked.actions);
  for (std::size_t i = 0; i < numbers.size(); ++i) messages[i].number = numbers[i];
  return messages;
}

void MarkingWalk::send(std::vector<Message> messages) {
  for (Message& each : messages) {
    if (each.number == 0) continue;
    const absl::StatusOr<rpc::Worker> to = part_.calls().find(each.to);
    absl::Status sent = to.status();
    const auto answered = [part = part_.shared_from_this(),
                           number = each.number](const absl::StatusOr<proto::PassAnswer>& answer) {
      // `part` is alive until the answer, which may come after the context has been released.
      part->answered(answer, [&](PassPart::Locked& locked) {
        locked.state.mark_answered(number, {answer->participants().begin(), answer->participants().end()},
                                   locked.actions);
      });
    };
    if (sent.ok() && each.needed) {
      proto::Needed needed;
      needed.set_number(each.number);
      needed.mutable_needed()->Swap(&each.tensors);
      sent = part_.calls().send(*to, kNeededService, needed, nullptr, {}, "backward at", answered);
    } else if (sent.ok()) {
      proto::Mark mark;
      mark.set_number(each.number);
      mark.mutable_marked()->Swap(&each.tensors);
      sent = part_.calls().send(*to, kMarkService, mark, nullptr, {}, "backward at", answered);
    }
    // The remaining messages are not sent: the abort goes to all receivers, because the state has recorded
    // them.
    if (!sent.ok()) return part_.abort(sent);
  }
}

// 1. Register the reply, so that it is answered whatever happens next, also by an error of the walk.
// 2. Ignore a repetition: begin_mark() answers it together with the first one.
// 3. Walk the graph with the lock held. The walk runs no user code.
// 4. Send the messages of the walk, without the lock.
// 5. Check whether the sender or the root was lost before this pass depended on it. The agent reports a loss
//    only once, so it would not be noticed later.
void MarkingWalk::serve(const rpc::Worker& from, uint64_t number, const PassReply& reply,
                        absl::FunctionRef<absl::StatusOr<LocalExecutor::Reach>(LocalExecutor&)> walk) {
  std::vector<Message> messages;
  part_.update([&](PassPart::Locked& locked) {
    if (!locked.state.begin_mark(from.incarnation, number, locked.owe(reply), locked.actions)) return;
    const absl::StatusOr<LocalExecutor::Reach> walked =
        locked.state.ended() ? absl::AbortedError("the backward pass has ended") : walk(*locked.graph);
    if (!walked.ok()) return locked.fail(walked.status());
    locked.count();
    messages = end_walk(*walked, locked);
  });
  send(std::move(messages));
  part_.notice_losses(from.incarnation);
}

// The send nodes are found first, so that the lock of the context is not taken with that of the part held. A
// number that does not exist becomes an error of the pass.
void MarkingWalk::mark(const rpc::Worker& from, const proto::Mark& mark, const PassReply& reply) {
  std::vector<uint64_t> messages;
  for (const proto::SentTensors& marked : mark.marked()) messages.push_back(marked.message());
  const absl::StatusOr<SendNodes> nodes = find_send_nodes(context_, messages);
  serve(from, mark.number(), reply, [&](LocalExecutor& graph) -> absl::StatusOr<LocalExecutor::Reach> {
    GRADWIRE_RETURN_IF_ERROR(nodes.status());
    LocalExecutor::Reach all;
    for (int i = 0; i < mark.marked_size(); ++i) {
      const auto& outputs = mark.marked(i).outputs();
      GRADWIRE_ASSIGN_OR_RETURN(LocalExecutor::Reach reach,
                                graph.mark_outputs((*nodes)[i], {outputs.begin(), outputs.end()}));
      all.append(std::move(reach));
    }
    return all;
  });
}

void MarkingWalk::need(const rpc::Worker& from, const proto::Needed& needed, const PassReply& reply) {
  serve(from, needed.number(), reply, [&](LocalExecutor& graph) -> absl::StatusOr<LocalExecutor::Reach> {
    LocalExecutor::Reach all;
    for (const proto::SentTensors& each : needed.needed()) {
      GRADWIRE_ASSIGN_OR_RETURN(LocalExecutor::Reach reach,
                                graph.need_outputs(from.incarnation, each.message(),
                                                   {each.outputs().begin(), each.outputs().end()}));
      all.append(std::move(reach));
    }
    return all;
  });
}

std::optional<Plan> DirectMarking::plan_of(const LocalExecutor::Reach& reach, uint64_t root) {
  Plan plan(root);
  for (const LocalExecutor::Reached& reached : reach.marked) {
    for (uint32_t output : reached.outputs) {
      const GradientRoute* route = reached.node->route(output);
      if (route == nullptr) return std::nullopt;
      GradientRoute tensors = *route;
      tensors.add(reached.node->sender().incarnation, reached.node->message(), output);
      plan.add(std::move(tensors));
    }
    if (!plan.fits()) return std::nullopt;
  }
  return plan;
}

void DirectMarking::start(std::optional<Plan> plan, const LocalExecutor::Reach& reach) {
  if (!plan) return begin_fast();
  absl::btree_set<uint64_t> participants, shipped_to;
  for (const GradientRoute& part : plan->parts()) {
    for (const auto& [message, outputs] : part.messages()) participants.insert(message.first);
  }
  for (const LocalExecutor::Reached& reached : reach.marked) {
    shipped_to.insert(reached.node->sender().incarnation);
  }
  part_.calls().set_plan(*std::move(plan));
  // Normally the RUN from the root is a FINISH too, so the workers in `shipped_to` need no FINISH. Exception:
  // if a gradient comes back to the root and goes on to other workers, a RUN of the root may be delayed by a
  // worker that fails. Then every participant gets a FINISH, whose answer can report the failure.
  if (begin_planned()) shipped_to.clear();
  part_.update([&](PassPart::Locked& locked) {
    if (locked.state.ended()) return;
    locked.state.begin_planned({participants.begin(), participants.end()},
                               {shipped_to.begin(), shipped_to.end()}, locked.actions);
  });
}

// Only the first message of the pass marks; later ones do nothing. `begun_` is set with the lock of the part
// held, before the marking. So a thread that reads true here may be early, but it takes that lock before it
// uses the graph, and then the marking is complete. The load with acquire order only makes the usual case
// cheap.
void DirectMarking::begin() {
  const proto::Pass& header = part_.calls().header();
  if (!(header.fast() || header.planned()) || begun_.load(std::memory_order_acquire)) return;
  if (header.fast()) begin_fast();
  if (header.planned()) begin_planned();
}

// 1. Copy the send nodes with the lock of the context held. A message that is sent later is not part of the
//    pass.
// 2. Mark all of their outputs, with the lock of the part held.
// 3. Check for receivers that were lost before step 2: their gradients can never arrive.
void DirectMarking::begin_fast() {
  SendNodes nodes;
  {
    MutexLock lock(context_.mutex);
    for (const auto& [message, node] : context_.send_nodes) nodes.push_back(node);
  }
  const PassCalls& calls = part_.calls();
  part_.update([&](PassPart::Locked& locked) {
    if (begun_.exchange(true) || locked.state.ended()) return;
    for (const auto& node : nodes) {
      std::vector<uint32_t> all(node->num_outputs());
      std::iota(all.begin(), all.end(), 0);
      const absl::StatusOr<LocalExecutor::Reach> reach = locked.graph->mark_outputs(node, all);
      if (!reach.ok()) return locked.fail(reach.status());
      // If the receiver is lost, its gradients never arrive.
      if (node->receiver() != calls.self().incarnation) locked.state.depends_on(node->receiver());
    }
    locked.count();
    locked.actions.start_run = calls.is_root();
  });
  for (const auto& node : nodes) part_.notice_loss(node->receiver());
}

// 1. Find the send nodes of the messages of this worker that the plan names.
// 2. Mark their outputs with the lock of the part held, unless another message has done so.
bool DirectMarking::begin_planned() {
  const PassCalls& calls = part_.calls();
  std::vector<uint64_t> messages;
  for (const GradientRoute& part : calls.plan().parts()) {
    for (const auto& [message, outputs] : part.messages()) {
      if (message.first == calls.self().incarnation) messages.push_back(message.second);
    }
  }
  const absl::StatusOr<SendNodes> nodes = find_send_nodes(context_, messages);
  bool first = false;
  part_.update([&](PassPart::Locked& locked) {
    first = !begun_.exchange(true) && !locked.state.ended();
    if (!first) return;
    if (absl::Status marked = mark_planned(nodes, locked); !marked.ok()) locked.fail(std::move(marked));
  });
  return first && nodes.ok() &&
         std::any_of(nodes->begin(), nodes->end(), [](const auto& node) { return node->may_continue(); });
}

absl::Status DirectMarking::mark_planned(const absl::StatusOr<SendNodes>& nodes,
                                         PassPart::Locked& locked) const {
  const PassCalls& calls = part_.calls();
  GRADWIRE_RETURN_IF_ERROR(nodes.status());
  // A worker that has sent no tensor of the plan must not get a message of a planned pass.
  if (!calls.is_root() && nodes->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "malformed plan of a backward pass: got no tensor that this worker sent, expected at least "
        "one, and at most ",
        GradientRoute::kMaxTensors, " in all"));
  }
  auto node = nodes->begin();
  for (const GradientRoute& part : calls.plan().parts()) {
    for (const auto& [message, outputs] : part.messages()) {
      if (message.first != calls.self().incarnation) continue;
      GRADWIRE_ASSIGN_OR_RETURN(LocalExecutor::Reach reach,
                                locked.graph->mark_outputs(*node++, {outputs.begin(), outputs.end()}));
      GRADWIRE_RETURN_IF_ERROR(check_planned(part, reach));
    }
  }
  locked.count();
  return absl::OkStatus();
}

}  // namespace gradwire::autograd
