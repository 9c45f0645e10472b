#include <algorithm>
#include <tuple>

#include "gradwire/tests/simulation/references/world.h"

// The messages between workers.
namespace gradwire::references_simulation {

using rpc::Id;
using rpc::ReferenceMessage;
using rpc::References;

namespace {

constexpr Time kRetryAfter = 25'000;

void sort(std::vector<ReferenceMessage>& messages) {
  if (messages.size() < 2) return;
  std::sort(messages.begin(), messages.end(), [](const ReferenceMessage& a, const ReferenceMessage& b) {
    return std::tie(a.kind, a.to, a.fork) < std::tie(b.kind, b.to, b.fork);
  });
}

bool at_most_once(const Packet& packet) {
  return packet.kind != Packet::Kind::kMessage && packet.kind != Packet::Kind::kAnswer;
}

}  // namespace

void World::send(Packet packet) {
  if (trace_) {
    trace_->line(now_, node_name(packet.from), " -> ", node_name(packet.to), ": ", describe(packet));
  }
  packet.sequence = network_.next_sequence();
  const bool twice = !calm_ && !at_most_once(packet) && random_.per_mille(scenario_.duplicate);
  const int to = packet.to;
  if (twice) scheduler_.add(now_ + some_delay(), Event::Kind::kDeliver, to, 0, network_.add(packet));
  scheduler_.add(now_ + some_delay(), Event::Kind::kDeliver, to, 0, network_.add(std::move(packet)));
}

void World::deliver(uint32_t index) {
  const Packet& pending = network_.at(index);
  const int from = pending.from;
  const int to = pending.to;
  Node& node = *nodes_[to];
  const bool own = from == to;
  if (node.running && !reachable(from, to) && at_most_once(pending) && random_.below(2) == 0) {
    // The connection survives the cut, and the packet arrives afterwards.
    scheduler_.add(network_.cut_until(from, to) + random_.between(100, 2000), Event::Kind::kDeliver, to, 0,
                   index);
    return;
  }
  const bool first = network_.first(pending);
  const Packet packet = network_.take(index);
  const uint32_t chance = at_most_once(packet) ? scenario_.lose_call : scenario_.drop;
  if (!node.running || !reachable(from, to) || (!calm_ && !own && random_.per_mille(chance))) {
    if (trace_) {
      trace_->line(now_, "lost: ", node_name(from), " -> ", node_name(to), ": ", describe(packet));
    }
    if (at_most_once(packet)) lose_call(packet);
    Node& sender = *nodes_[from];
    if (!node.running && sender.running && reachable(from, to) &&
        sender.detector.state(node.incarnation) == rpc::FailureDetector::State::kUnwatched) {
      // There was no connection, and the host refuses a new one.
      scheduler_.add(now_ + 100, Event::Kind::kProbed, from, to);
    }
  } else {
    if (!own && nodes_[from]->running) establish(from, to);
    if (trace_) {
      trace_->line(now_, node_name(to), " gets from ", node_name(from), ": ", describe(packet),
                   first ? "" : " (before earlier packets)");
    }
    Packet arriving = packet;
    arriving.in_flight =
        first;  // From now on `in_flight` means: no earlier packet can arrive any more (settled).
    arrive(node, arriving);
    if (trace_) trace_tables(node);
  }
  if (!own && node.running && network_.idle(from, to) && random_.below(4) == 0) {
    node.references.settle(nodes_[from]->incarnation);
  }
}

void World::lose_call(const Packet& packet) {
  Node& sender = *nodes_[packet.from];
  if (packet.kind == Packet::Kind::kShare) {
    if (packet.kept_handle != 0 && sender.running) unkeep(sender, packet.kept_handle);
  } else {
    const int creator = packet.kind == Packet::Kind::kCreate ? packet.from : packet.to;
    scheduler_.add(now_ + random_.between(1000, 40'000), Event::Kind::kEndCreation, creator, 0,
                   static_cast<uint32_t>(packet.reference.child.counter));
  }
  if (packet.from != packet.to) break_link(packet.from, packet.to);
}

void World::arrive(Node& node, const Packet& packet) {
  switch (packet.kind) {
    case Packet::Kind::kMessage:
      return on_message(node, packet);
    case Packet::Kind::kAnswer:
      return on_answer(node, packet);
    case Packet::Kind::kShare:
      return on_share(node, packet);
    case Packet::Kind::kCreate:
      return on_create(node, packet);
    case Packet::Kind::kCreated:
      return end_creation(node, packet.reference.child, false);
  }
}

void World::on_message(Node& node, const Packet& packet) {
  const ReferenceMessage& message = packet.message;
  const uint64_t from = nodes_[packet.from]->incarnation;
  const bool settled = packet.in_flight;
  int owned = 0, fence = 0;
  switch (message.kind) {
    case ReferenceMessage::Kind::kAdd:
      cover(Machine::kOwnedFork, owned_state(node, message.rref, message.fork, from), Coverage::kAdd);
      break;
    case ReferenceMessage::Kind::kDelete:
      owned = owned_state(node, message.rref, message.fork, from);
      cover(Machine::kOwnedFork, owned, settled ? Coverage::kDeleteSettled : Coverage::kDelete);
      break;
    case ReferenceMessage::Kind::kRevoke:
      cover(Machine::kHeldFork, held_state(node, message.fork), Coverage::kRevokeAsked);
      break;
    case ReferenceMessage::Kind::kConfirm:
      cover(Machine::kHeldFork, held_state(node, node.references.holder().parent_of(message.fork)),
            Coverage::kChildConfirmed);
      break;
    case ReferenceMessage::Kind::kFence:
      fence = fence_state(node);
      break;
  }
  Actions actions;
  const auto answer = node.references.on_message(from, message, settled, actions);
  if (message.kind == ReferenceMessage::Kind::kFence) {
    const bool now = std::any_of(actions.fence_answers.begin(), actions.fence_answers.end(),
                                 [from](const Actions::FenceAnswer& a) { return a.asker == from; });
    cover(Machine::kFence, fence,
          answer ? Coverage::kAskedByDead
          : now  ? Coverage::kAsked
                 : Coverage::kAskedToWait);
  }
  process(node, actions);
  if (!answer) return;
  Packet reply{.kind = Packet::Kind::kAnswer, .from = packet.to, .to = packet.from};
  reply.message = message;
  reply.answer = *answer;
  send(std::move(reply));
}

void World::on_answer(Node& node, const Packet& packet) {
  const ReferenceMessage& message = packet.message;
  switch (message.kind) {
    case ReferenceMessage::Kind::kAdd:
      cover(Machine::kHeldFork, held_state(node, message.fork),
            packet.answer == ReferenceMessage::Answer::kDone ? Coverage::kAdded : Coverage::kAddRefused);
      break;
    case ReferenceMessage::Kind::kRevoke:
      if (packet.answer != ReferenceMessage::Answer::kNever) break;
      if (known(message.rref).owner == node.index) {
        cover(Machine::kOwnedFork, owned_state(node, message.rref, message.fork, message.to),
              Coverage::kUnregister);
      } else {
        cover(Machine::kHeldFork, held_state(node, node.references.holder().parent_of(message.fork)),
              Coverage::kChildNever);
      }
      break;
    case ReferenceMessage::Kind::kFence:
      cover(Machine::kFence, fence_state(node),
            message.round != node.references.fences().round()  ? Coverage::kAnsweredLate
            : packet.answer == ReferenceMessage::Answer::kDone ? Coverage::kAnswered
                                                               : Coverage::kAnsweredRefused);
      break;
    default:
      break;
  }
  Actions actions;
  node.references.on_answer(message, packet.answer, actions);
  process(node, actions);
}

void World::on_share(Node& node, const Packet& packet) {
  Actions actions;
  const References::Reference& reference = packet.reference;
  const auto received = node.references.receive(reference, nodes_[packet.from]->incarnation, actions);
  if (trace_) trace_->detail("receives ", describe(received));
  check_received(node, packet, received);
  if (received == References::Received::kOwned) {
    add_handle(node, reference.rref, {}, node.incarnation);
  } else if (received == References::Received::kConfirmed || received == References::Received::kUnconfirmed) {
    add_handle(node, reference.rref, reference.child, reference.owner);
  }
  process(node, actions);
  if (packet.kept_handle != 0 && nodes_[packet.from]->running)
    unkeep(*nodes_[packet.from], packet.kept_handle);
}

void World::on_create(Node& node, const Packet& packet) {
  const Id& rref = packet.reference.rref;
  const uint64_t holder = nodes_[packet.from]->incarnation;
  // Calls from a lost worker are not served.
  if (node.references.peers().is_lost(holder)) return;
  cover(Machine::kOwnedFork, owned_state(node, rref, packet.reference.child, holder), Coverage::kCreate);
  known(rref).value = true;
  Actions actions;
  node.references.create(rref, packet.reference.child, holder, actions);
  const bool wanted = actions.freed.empty();
  // If the creation was given up and its delete arrived first, there is no value, and no worker needs it.
  if (!wanted) known(rref).value = false;
  process(node, actions);
  Packet reply{.kind = Packet::Kind::kCreated, .from = packet.to, .to = packet.from};
  reply.reference = packet.reference;
  send(std::move(reply));
}

void World::retry(Node& node) {
  node.retry_due = false;
  if (node.references.peers().unacknowledged() == 0) return;
  for (const auto& peer : nodes_) {
    std::vector<ReferenceMessage> messages = node.references.peers().unacknowledged(peer->incarnation);
    sort(messages);
    for (ReferenceMessage& message : messages) {
      Packet packet{.kind = Packet::Kind::kMessage, .from = node.index, .to = peer->index};
      packet.message = std::move(message);
      send(std::move(packet));
    }
  }
  node.retry_due = true;
  scheduler_.add(now_ + kRetryAfter, Event::Kind::kRetry, node.index);
}

void World::process(Node& node, Actions& actions) {
  if (!violation_.empty()) return;
  const References& references = node.references;
  if (!references.owner().consistent() || !references.holder().consistent() ||
      !references.peers().consistent())
    violate(absl::StrCat("an index of ", node_name(node.index), " disagrees with its table"));
  for (const Id& rref : actions.freed) {
    if (trace_) trace_->detail(node_name(node.index), " frees rref ", describe(rref));
    check_freed(node, rref);
  }
  for (const Id& fork : actions.refused) {
    for (Handle& handle : node.handles) {
      if (handle.fork != fork) continue;
      handle.failed = true;
      // Without the log the owner may have marked the holder as lost alone. The log decides later.
      if (scenario_.store_loss && nodes_[handle.owner - 1]->references.peers().is_lost(node.incarnation)) {
        continue;
      }
      if (live(node.index) && live(static_cast<int>(handle.owner) - 1) &&
          !node.references.peers().is_lost(handle.owner)) {
        violate(absl::StrCat("the owner of fork ", describe(fork), " refused it to a live holder"));
      }
    }
  }
  sort(actions.send);
  for (ReferenceMessage& message : actions.send) {
    Packet packet{.kind = Packet::Kind::kMessage, .from = node.index, .to = static_cast<int>(message.to) - 1};
    packet.message = std::move(message);
    send(std::move(packet));
  }
  if (!node.retry_due && node.references.peers().unacknowledged() > 0) {
    node.retry_due = true;
    scheduler_.add(now_ + kRetryAfter, Event::Kind::kRetry, node.index);
  }
  std::sort(actions.fence_answers.begin(), actions.fence_answers.end(),
            [](const auto& a, const auto& b) { return a.asker < b.asker; });
  for (const Actions::FenceAnswer& answer : actions.fence_answers) {
    Packet reply{.kind = Packet::Kind::kAnswer, .from = node.index, .to = static_cast<int>(answer.asker) - 1};
    reply.message.kind = ReferenceMessage::Kind::kFence;
    reply.message.to = node.incarnation;
    reply.message.round = answer.round;
    send(std::move(reply));
  }
  std::sort(actions.accused.begin(), actions.accused.end());
  for (uint64_t dead : actions.accused) {
    lose(node, dead);
    declare_dead(node, dead, "another worker's fence names it as dead", false);
  }
}

}  // namespace gradwire::references_simulation
