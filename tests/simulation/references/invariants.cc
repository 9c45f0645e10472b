#include <algorithm>

#include "gradwire/tests/simulation/references/world.h"

// The invariants: conditions that must hold in every schedule.
namespace gradwire::references_simulation {

using rpc::Id;
using rpc::References;
using rpc::Roster;

void World::violate(std::string what) {
  if (!violation_.empty()) return;
  violation_ = std::move(what);
  if (trace_) trace_->line(now_, "VIOLATED: ", violation_);
}

void World::check_freed(Node& owner, const Id& rref) {
  Known& freed = known(rref);
  // There is no value to free: the request that creates it has not arrived yet, or was lost.
  if (!freed.value) return;
  freed.value = false;
  freed.freed = true;
  if (!live(owner.index)) return;
  for (const auto& node : nodes_) {
    if (!live(node->index)) continue;
    for (const Handle& handle : node->handles) {
      if (handle.rref == rref && !handle.failed) {
        violate(absl::StrCat(node_name(owner.index), " freed rref ", describe(rref), " while ",
                             node_name(node->index), " has a handle of it, fork ", describe(handle.fork)));
      }
    }
  }
  for (const Packet& packet : network_.packets()) {
    if (!packet.in_flight || packet.kind != Packet::Kind::kShare || packet.reference.rref != rref) continue;
    if (!live(packet.from) || !live(packet.to)) continue;
    // The receiver has revoked this reference and refuses it when it arrives.
    if (nodes_[packet.to]->references.revocations().is_revoked(nodes_[packet.from]->incarnation,
                                                               packet.reference.child))
      continue;
    violate(absl::StrCat(node_name(owner.index), " freed rref ", describe(rref),
                         " while a reference to it, fork ", describe(packet.reference.child),
                         ", is on its way from ", node_name(packet.from), " to ", node_name(packet.to)));
  }
}

void World::check_received(Node& node, const Packet& packet, References::Received received) {
  using Received = References::Received;
  const Id& rref = packet.reference.rref;
  const int owner = known(rref).owner;
  if (received == Received::kInvalid) {
    violate(absl::StrCat(node_name(node.index), " rejected a valid reference as invalid"));
  }
  const bool handle =
      received == Received::kOwned || received == Received::kConfirmed || received == Received::kUnconfirmed;
  if (handle && known(rref).freed && live(node.index) && live(owner)) {
    violate(absl::StrCat(node_name(node.index), " got a handle of rref ", describe(rref), ", which ",
                         node_name(owner), " had freed"));
  }
}

void World::check_blame(int by, int dead) {
  const Node& accused = *nodes_[dead];
  if (!accused.running || accused.gone) return;
  // A reader that stands still excuses nobody who accuses others.
  if (disturbed_for(accused, *nodes_[by]) >= kTolerated) return;
  // The others do not talk to a worker that the log has declared dead. Without the store it does not know,
  // and takes them for silent. check_death() keeps its accusations out of the log.
  const Node& accuser = *nodes_[by];
  if (accuser.gone && accuser.store_lost) return;
  // A worker without the store cannot read the other's join. During that time the two did not communicate.
  const auto missed_join = [this](const Node& reader, const Node& other) {
    const Time without = reader.without_store_for + (reader.store_lost ? now_ - reader.store_lost_at : 0);
    return without >= kTolerated && (reader.known_at_loss & (1u << other.index)) == 0;
  };
  if (missed_join(accused, accuser) || missed_join(accuser, accused)) return;
  violate(absl::StrCat(node_name(by), " declared ", node_name(dead), " dead, but that worker is healthy"));
}

// A worker that does not read must not count as healthy for those that wait for what it reads.
void World::check_suspected(const Node& stalled) {
  if (stalled.gone) return;
  for (const auto& peer : nodes_) {
    const Time before = stalled.watchers[peer->index];
    if (before < 0 || !live(peer->index) || peer->references.peers().is_lost(stalled.incarnation)) continue;
    if (disturbed_for(*peer, stalled) != before) continue;
    if (peer->detector.state(stalled.incarnation) != rpc::FailureDetector::State::kAlive) continue;
    return violate(absl::StrCat(node_name(peer->index), " considers ", node_name(stalled.index),
                                " alive, which has not read anything for too long"));
  }
}

void World::check_death(const rpc::RosterEntry& entry) {
  if (entry.kind != rpc::RosterEntry::Kind::kDeath) return;
  const int dead = static_cast<int>(entry.worker.incarnation) - 1;
  const int by = static_cast<int>(entry.by) - 1;
  if (truth_.check(entry).what != Roster::Change::What::kDied) return;
  if (nodes_[by]->gone) {
    violate(absl::StrCat(node_name(by), ", which is dead itself, declared ", node_name(dead), " dead"));
  }
  check_blame(by, dead);
}

void World::check_joined(const rpc::Worker& joined) {
  for (const auto& node : nodes_) {
    if (node->gone || node->incarnation == joined.incarnation) continue;
    if (truth_.status(node->incarnation) != Roster::Status::kMember) continue;
    if (node->name == joined.name) violate(absl::StrCat("two members have the name ", joined.name));
  }
  std::size_t members = 0;
  for (const auto& node : nodes_) {
    members += truth_.status(node->incarnation) == Roster::Status::kMember ? 1 : 0;
  }
  if (members != truth_.members().size()) violate("two members have the same id");
}

void World::check_same(Node& node, uint64_t position, const Roster::Change& change) {
  const Roster::Change& effect = effects_[position];
  if (change.what != effect.what || change.worker != effect.worker) {
    violate(absl::StrCat(node_name(node.index), " derived another change from log entry ", position,
                         " than others"));
  }
}

void World::check_healed() {
  for (const auto& node : nodes_) {
    if (!node->running) continue;
    if (node->roster.members() != truth_.members()) {
      return violate(absl::StrCat(node_name(node->index), " has different members than the log"));
    }
    for (const auto& other : nodes_) {
      if (other == node || !other->running) continue;
      if (node->detector.state(other->incarnation) != rpc::FailureDetector::State::kAlive) {
        return violate(absl::StrCat(node_name(node->index), " does not consider ", node_name(other->index),
                                    " alive after all faults were healed"));
      }
    }
    for (const Handle& handle : node->handles) {
      const Known& value = known(handle.rref);
      if (handle.failed || !live(value.owner)) continue;
      if (value.freed) {
        return violate(
            absl::StrCat(node_name(node->index), " has a handle of the freed rref ", describe(handle.rref)));
      }
      if (!value.value) continue;  // The value was never created.
      const rpc::OwnerTable& table = nodes_[value.owner]->references.owner();
      if (handle.fork ? !table.has_fork(handle.rref, handle.fork) : !table.contains(handle.rref)) {
        return violate(absl::StrCat(node_name(value.owner), " does not know fork ", describe(handle.fork),
                                    " of ", node_name(node->index)));
      }
    }
  }
}

void World::check_empty() {
  for (const auto& node : nodes_) {
    if (!node->running) continue;
    for (const auto& peer : nodes_) node->references.settle(peer->incarnation);
    const References& references = node->references;
    const std::pair<const char*, std::size_t> tables[] = {
        {"values", references.owner().size()},
        {"remembered deletes", references.owner().remembered_deletes()},
        {"forks", references.holder().forks()},
        {"children", references.holder().children()},
        {"unconfirmed forks", references.holder().unconfirmed()},
        {"unanswered messages", references.peers().unacknowledged()},
        {"revoked references", references.revocations().revoked()},
        {"unanswered fences", references.fences().unanswered()},
    };
    for (const auto& [what, count] : tables) {
      const bool kept = what == tables[0].first || what == tables[2].first || what == tables[3].first;
      if (kept && keeps_for_lost(*node)) continue;
      if (count != 0) {
        return violate(
            absl::StrCat(node_name(node->index), " keeps ", count, " ", what, " after the last release"));
      }
    }
    if (references.fences().due() && !keeps_for_lost(*node)) {
      return violate(absl::StrCat(node_name(node->index), " has an unfinished fence"));
    }
  }
}

bool World::keeps_for_lost(const Node& node) const {
  if (scenario_.store) return false;
  // Entries that other nodes keep for a lost worker may also keep forks of this node.
  return std::any_of(nodes_.begin(), nodes_.end(), [&node](const auto& other) {
    return node.references.peers().is_lost(other->incarnation);
  });
}

int World::held_state(const Node& node, const Id& fork) const {
  return static_cast<int>(node.references.holder().stage(fork));
}

int World::owned_state(const Node& node, const Id& rref, const Id& fork, uint64_t holder) const {
  const rpc::OwnerTable& table = node.references.owner();
  const bool has = table.has_fork(rref, fork);
  if (table.lost(holder)) return has ? Coverage::kKeptForLost : Coverage::kHolderLost;
  if (has) return Coverage::kKnown;
  if (table.deleted(fork, holder)) return Coverage::kDeleted;
  return table.contains(rref) ? Coverage::kForkUnknown : Coverage::kRRefUnknown;
}

int World::fence_state(const Node& node) const {
  if (node.references.fences().running()) return Coverage::kFenceRunning;
  return node.references.fences().due() ? Coverage::kFenceDue : Coverage::kNoFence;
}

void World::trace_tables(const Node& node) {
  const References& references = node.references;
  trace_->detail(
      node_name(node.index), ": values ", references.owner().size(), ", remembered deletes ",
      references.owner().remembered_deletes(), ", forks ", references.holder().forks(), ", children ",
      references.holder().children(), ", unconfirmed ", references.holder().unconfirmed(), ", unanswered ",
      references.peers().unacknowledged(), ", revoked ", references.revocations().revoked(),
      references.fences().due() ? references.fences().running() ? ", fencing" : ", fence due" : "");
}

}  // namespace gradwire::references_simulation
