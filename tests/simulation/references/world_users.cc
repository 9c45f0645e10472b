#include <algorithm>

#include "gradwire/tests/simulation/references/world.h"

// The users' actions with handles.
namespace gradwire::references_simulation {

using rpc::Id;
using rpc::References;

void World::act() {
  if (calm_) return;
  Node* node = random_member();
  if (node == nullptr) return;
  const uint64_t what = random_.below(100);
  const uint64_t make = scenario_.sharing ? 12 : 22;
  if (node->handles.empty() || what < make) {
    if (what % 3 == 0) return own(*node);
    Node* owner = random_member();
    if (owner != nullptr) create(*node, *owner);
    return;
  }
  if (scenario_.forgeries && random_.below(8) == 0) return forge(*node);
  Handle& handle = node->handles[random_.below(node->handles.size())];
  if (handle.released) return;
  if (what < make + 28) return release(*node, handle.number);
  // A receiver is a member that this node knows (it may be dead, or not know this node yet), or a connected
  // worker that this node does not know yet.
  Node& receiver = *nodes_[random_.below(nodes_.size())];
  const bool caller = receiver.running && receiver.member && network_.linked(node->index, receiver.index);
  if (caller || node->roster.status(receiver.incarnation) == rpc::Roster::Status::kMember) {
    share(*node, handle, receiver);
  }
}

void World::forge(Node& node) {
  const Node& other = *nodes_[random_.below(nodes_.size())];
  if (&other == &node || other.handles.empty()) return;
  const Handle& handle = other.handles[random_.below(other.handles.size())];
  if (!handle.fork || handle.owner == node.incarnation) return;
  Packet packet{.kind = Packet::Kind::kMessage, .from = node.index, .to = static_cast<int>(handle.owner) - 1};
  packet.message = {.kind = rpc::ReferenceMessage::Kind::kDelete,
                    .to = handle.owner,
                    .rref = handle.rref,
                    .fork = handle.fork};
  if (random_.below(2) == 0) {
    packet.to = static_cast<int>(random_.below(nodes_.size()));
    if (node.roster.status(packet.to + 1) != rpc::Roster::Status::kMember || packet.to == node.index) return;
    packet.message.kind = rpc::ReferenceMessage::Kind::kConfirm;
    packet.message.to = packet.to + 1;
  }
  send(std::move(packet));
}

void World::add_handle(Node& node, const Id& rref, const Id& fork, uint64_t owner) {
  node.handles.push_back({.number = ++handles_, .rref = rref, .fork = fork, .owner = owner});
}

void World::own(Node& node) {
  const Id rref = next_id(node);
  rref_index_.resize(ids_ + 1);
  rref_index_[rref.counter] = static_cast<uint32_t>(known_.size());
  known_.push_back({.id = rref, .owner = node.index, .value = true});
  if (trace_) trace_->line(now_, node_name(node.index), " owns a new value: rref ", describe(rref));
  node.references.own(rref);
  add_handle(node, rref, {}, node.incarnation);
}

void World::create(Node& node, Node& owner) {
  if (node.roster.status(owner.incarnation) != rpc::Roster::Status::kMember) return;
  if (node.references.peers().is_lost(owner.incarnation)) return;
  const Id rref = next_id(node);
  const Id fork = next_id(node);
  rref_index_.resize(ids_ + 1);
  rref_index_[rref.counter] = static_cast<uint32_t>(known_.size());
  known_.push_back({.id = rref, .owner = owner.index});
  if (trace_) {
    trace_->line(now_, node_name(node.index), " asks ", node_name(owner.index), " to create rref ",
                 describe(rref), ", holds fork ", describe(fork));
  }
  if (&node == &owner) {
    Actions actions;
    cover(Machine::kOwnedFork, Coverage::kRRefUnknown, Coverage::kCreate);
    node.references.create(rref, fork, node.incarnation, actions);
    node.references.own(rref);
    known_.back().value = true;
    add_handle(node, rref, {}, node.incarnation);
    scheduler_.add(now_ + some_delay(), Event::Kind::kEndOwnCreation, node.index, 0, fork.counter);
    return process(node, actions);
  }
  node.references.begin_creation(rref, fork, owner.incarnation);
  add_handle(node, rref, fork, owner.incarnation);
  Packet packet{.kind = Packet::Kind::kCreate, .from = node.index, .to = owner.index};
  packet.reference = {.rref = rref, .owner = owner.incarnation, .child = fork};
  send(std::move(packet));
  // The caller's deadline may expire before the answer arrives.
  if (random_.below(12) == 0) {
    scheduler_.add(now_ + some_delay(), Event::Kind::kEndCreation, node.index, 0, fork.counter);
  }
}

void World::end_creation(Node& node, const Id& fork, bool failed) {
  if (trace_) {
    trace_->line(now_, node_name(node.index), ": creation with fork ", describe(fork),
                 failed ? " is given up" : " is done");
  }
  cover(Machine::kHeldFork, held_state(node, fork), failed ? Coverage::kCreationFailed : Coverage::kCreated);
  Actions actions;
  node.references.end_creation(fork, actions);
  process(node, actions);
}

void World::end_own_creation(Node& node, const Id& fork) {
  // create() made the two ids one after the other.
  const Id rref{fork.origin, fork.counter - 1};
  Actions actions;
  node.references.end_own_creation(rref, fork, /*made=*/true, actions);
  process(node, actions);
}

void World::release(Node& node, uint64_t number) {
  auto handle = std::find_if(node.handles.begin(), node.handles.end(),
                             [number](const Handle& handle) { return handle.number == number; });
  if (handle == node.handles.end()) return;
  if (handle->kept > 0 && !calm_) {
    handle->released = true;
    return;
  }
  const Handle gone = *handle;
  *handle = node.handles.back();
  node.handles.pop_back();
  if (trace_) {
    trace_->line(now_, node_name(node.index), " releases its handle of rref ", describe(gone.rref), ", fork ",
                 describe(gone.fork));
  }
  Actions actions;
  if (gone.fork) {
    cover(Machine::kHeldFork, held_state(node, gone.fork), Coverage::kReleased);
  }
  node.references.release(gone.rref, gone.fork, actions);
  process(node, actions);
}

void World::unkeep(Node& node, uint64_t number) {
  for (Handle& handle : node.handles) {
    if (handle.number != number) continue;
    if (--handle.kept == 0 && handle.released) release(node, number);
    return;
  }
}

void World::share(Node& node, Handle& handle, Node& receiver) {
  if (node.references.peers().is_lost(receiver.incarnation)) return;
  Packet packet{.kind = Packet::Kind::kShare, .from = node.index, .to = receiver.index};
  packet.reference = {.rref = handle.rref, .owner = handle.owner};
  if (!handle.failed && receiver.incarnation == handle.owner && random_.below(2) == 0) {
    // The sender keeps its handle until the call has ended, so the owner keeps the value without a new fork.
    packet.kept_handle = handle.number;
    ++handle.kept;
    send(std::move(packet));
    if (random_.per_mille(scenario_.release_after_share)) release(node, handle.number);
    return;
  }
  const Id child = next_id(node);
  packet.reference.child = child;
  if (handle.fork) {
    cover(Machine::kHeldFork, held_state(node, handle.fork), Coverage::kShared);
  } else {
    cover(Machine::kOwnedFork, owned_state(node, handle.rref, child, receiver.incarnation),
          Coverage::kRegister);
  }
  switch (node.references.share(handle.rref, handle.fork, child, receiver.incarnation)) {
    case References::Shared::kRefused:
      // References refuses to share a handle whose owner is lost. As far as this worker knows, the receiver
      // is not lost.
      if (!handle.failed) violate(absl::StrCat(node_name(node.index), " cannot share a usable handle"));
      return;
    case References::Shared::kRegistered:
      packet.reference.registered = true;
      break;
    case References::Shared::kUnregistered:
      break;
  }
  if (random_.below(30) == 0) {
    // The message is not sent.
    if (trace_) trace_->line(now_, node_name(node.index), " takes back ", describe(packet));
    if (handle.fork) {
      cover(Machine::kHeldFork, held_state(node, handle.fork), Coverage::kUnshared);
    } else {
      cover(Machine::kOwnedFork, owned_state(node, handle.rref, child, receiver.incarnation),
            Coverage::kUnregister);
    }
    Actions actions;
    node.references.unshare(packet.reference.rref, child, receiver.incarnation, actions);
    return process(node, actions);
  }
  if (random_.below(40) == 0) {
    // A broken connection is restored after the message was encoded and before it is sent on the new
    // connection.
    Actions actions;
    node.references.link_restored(receiver.incarnation, actions);
    process(node, actions);
  }
  node.references.sent(child);
  send(std::move(packet));
  if (random_.per_mille(scenario_.release_after_share)) release(node, handle.number);
}

}  // namespace gradwire::references_simulation
