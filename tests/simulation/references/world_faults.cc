#include "gradwire/tests/simulation/references/world.h"

// The faults of workers and their connections, and how the faults are healed.
namespace gradwire::references_simulation {

void World::stop(Node& node, const char* why) {
  if (trace_) trace_->line(now_, node_name(node.index), " ", why);
  node.running = false;
  for (const auto& peer : nodes_) {
    if (peer.get() == &node || !network_.linked(node.index, peer->index)) continue;
    network_.link(node.index, peer->index, false);
    if (peer->running && reachable(node.index, peer->index)) {
      scheduler_.add(now_ + random_.between(50, 3000), Event::Kind::kBroken, peer->index, node.index);
    }
  }
}

void World::restart(const std::string& name, int32_t id) {
  if (nodes_.size() >= kMaxWorkers) return;
  Node& node = add_node(name, id);
  if (trace_) trace_->line(now_, node_name(node.index), " starts and wants the name ", name);
  rpc::RosterEntry entry;
  entry.worker = {name, id, node.incarnation};
  entry.world_size = scenario_.open ? 0 : scenario_.workers;
  request(node, std::move(entry), false);
}

void World::pause(Node& node, Time duration) {
  if (trace_) trace_->line(now_, node_name(node.index), " is paused for ", duration / 1000, " ms");
  node.paused_until = now_ + duration;
  node.paused_for += duration;
}

void World::stall(Node& node, Time duration) {
  if (trace_) {
    trace_->line(now_, "the reader of ", node_name(node.index), " stands still for ", duration / 1000, " ms");
  }
  node.reader_until = now_ + duration;
  node.stalled_for += duration;
  node.watchers.fill(-1);
  const bool long_enough = duration > kSuspectAfter + 3 * kInterval;
  for (const auto& peer : nodes_) {
    const bool watches = long_enough && peer.get() != &node && live(peer->index) && peer->member &&
                         peer->paused_until <= now_ && peer->reader_until <= now_ &&
                         reachable(peer->index, node.index) && network_.linked(peer->index, node.index) &&
                         peer->detector.state(node.incarnation) == rpc::FailureDetector::State::kAlive;
    if (watches) node.watchers[peer->index] = disturbed_for(*peer, node);
  }
  scheduler_.add(node.reader_until, Event::Kind::kGoesOn, node.index);
}

void World::go_on(Node& node) {
  // A node that is paused as well goes on later. Others may have connected to it in between.
  if (calm_ || now_ > node.reader_until) return;
  if (trace_) trace_->line(now_, "the reader of ", node_name(node.index), " goes on");
  check_suspected(node);
}

void World::cut(int a, int b, Time duration) {
  const std::string target = b == kAll ? "all nodes" : b == kStore ? "the store" : node_name(b);
  if (trace_) trace_->line(now_, node_name(a), " is cut off from ", target, " for ", duration / 1000, " ms");
  for (int peer = 0; peer <= kStore; ++peer) {
    if (peer == a || (b != kAll && b != peer)) continue;
    network_.cut(a, peer, now_ + duration, duration);
  }
}

void World::lose_store(Node& node) {
  if (trace_) trace_->line(now_, node_name(node.index), " loses the store");
  constexpr Time kUntilItHeals = Time{1} << 40;
  network_.cut(node.index, kStore, now_ + kUntilItHeals, 0);
  if (!node.store_lost) {
    node.store_lost_at = now_;
    node.known_at_loss = 0;
    for (const auto& other : nodes_) {
      const bool known = node.roster.status(other->incarnation) != rpc::Roster::Status::kUnknown;
      if (known) node.known_at_loss |= 1u << other->index;
    }
  }
  node.store_lost = true;
}

void World::heal() {
  calm_ = true;
  if (trace_) trace_->line(now_, "all faults are healed");
  network_.heal();
  for (const auto& node : nodes_) {
    node->paused_until = 0;
    node->reader_until = 0;
    if (node->store_lost) node->without_store_for += now_ - node->store_lost_at;
    node->store_lost = false;
    if (node->running) scheduler_.add(now_, Event::Kind::kFollow, node->index);
  }
  connect_all();
}

bool World::connect_all() {
  bool all = true;
  for (const auto& node : nodes_) {
    if (!node->running || !node->member) continue;
    for (const auto& peer : nodes_) {
      if (peer == node || (peer->running && !peer->member) || network_.linked(node->index, peer->index) ||
          truth_.status(peer->incarnation) != rpc::Roster::Status::kMember ||
          node->references.peers().is_lost(peer->incarnation)) {
        continue;
      }
      all = false;
      scheduler_.add(now_ + 5000, Event::Kind::kProbed, node->index, peer->index);
    }
  }
  return all;
}

}  // namespace gradwire::references_simulation
