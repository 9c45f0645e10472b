#include <algorithm>

#include "gradwire/tests/simulation/references/world.h"

// What must hold, whatever happens.
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
  // Without a value there was nothing to free: the request that makes it has not come, or never will.
  if (!freed.value) return;
  freed.value = false;
  freed.freed = true;
  if (!live(owner.index)) return;
  for (const auto& node : nodes_) {
    if (!live(node->index)) continue;
    for (const Handle& handle : node->handles) {
      if (handle.rref == rref && !handle.failed) {
        violate(absl::StrCat(node_name(owner.index), " freed rref ", describe(rref), " of which ",
                             node_name(node->index), " has a handle, fork ", describe(handle.fork)));
      }
    }
  }
  for (const Packet& packet : network_.packets()) {
    if (!packet.in_flight || packet.kind != Packet::Kind::kShare || packet.reference.rref != rref) continue;
    if (!live(packet.from) || !live(packet.to)) continue;
    // Refused if it comes.
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
    violate(absl::StrCat(node_name(node.index), " took an honest reference for an invalid one"));
  }
  const bool handle =
      received == Received::kOwned || received == Received::kConfirmed || received == Received::kUnconfirmed;
  if (handle && known(rref).freed && live(node.index) && live(owner)) {
    violate(absl::StrCat(node_name(node.index), " got a handle of rref ", describe(rref),
                         ", which had been freed by ", node_name(owner)));
  }
}

void World::check_blame(int by, int dead) {
  const Node& accused = *nodes_[dead];
  if (!accused.running || accused.gone) return;
  if (accused.paused_for + network_.cut_for(by, dead) >= kTolerated) return;
  // Without the store one of them could not read the other's join: they did not talk for that time.
  const Node& accuser = *nodes_[by];
  const auto strange = [this](const Node& reader, const Node& other) {
    const Time without = reader.without_store_for + (reader.store_lost ? now_ - reader.store_lost_at : 0);
    return without >= kTolerated && (reader.known_at_loss & (1u << other.index)) == 0;
  };
  if (strange(accused, accuser) || strange(accuser, accused)) return;
  violate(absl::StrCat(node_name(by), " declared ", node_name(dead), " dead, which is healthy"));
}

void World::check_death(const rpc::RosterEntry& entry) {
  if (entry.kind != rpc::RosterEntry::Kind::kDeath) return;
  const int dead = static_cast<int>(entry.worker.incarnation) - 1;
  const int by = static_cast<int>(entry.by) - 1;
  if (truth_.check(entry).what != Roster::Change::What::kDied) return;
  if (nodes_[by]->gone) {
    violate(absl::StrCat(node_name(by), ", which is dead, declared ", node_name(dead), " dead"));
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
  if (members != truth_.members().size()) violate("two members have one id");
}

void World::check_same(Node& node, uint64_t position, const Roster::Change& change) {
  const Roster::Change& effect = effects_[position];
  if (change.what != effect.what || change.worker != effect.worker) {
    violate(
        absl::StrCat(node_name(node.index), " understands log entry ", position, " otherwise than others"));
  }
}

void World::check_healed() {
  for (const auto& node : nodes_) {
    if (!node->running) continue;
    if (node->roster.members() != truth_.members()) {
      return violate(absl::StrCat(node_name(node->index), " has other members than the log"));
    }
    for (const auto& other : nodes_) {
      if (other == node || !other->running) continue;
      if (node->detector.state(other->incarnation) != rpc::FailureDetector::State::kAlive) {
        return violate(absl::StrCat(node_name(node->index), " does not take ", node_name(other->index),
                                    " for alive after everything healed"));
      }
    }
    for (const Handle& handle : node->handles) {
      const Known& value = known(handle.rref);
      if (handle.failed || !live(value.owner)) continue;
      if (value.freed) {
        return violate(
            absl::StrCat(node_name(node->index), " has a handle of the freed rref ", describe(handle.rref)));
      }
      if (!value.value) continue;  // It was never made.
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
      if (kept && keeps_for_good(*node)) continue;
      if (count != 0) {
        return violate(
            absl::StrCat(node_name(node->index), " keeps ", count, " ", what, " after the last handle went"));
      }
    }
    if (references.fences().due() && !keeps_for_good(*node)) {
      return violate(absl::StrCat(node_name(node->index), " still fences"));
    }
  }
}

bool World::keeps_for_good(const Node& node) const {
  if (scenario_.store) return false;
  // What others keep for the lost keeps forks of this one, too.
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
