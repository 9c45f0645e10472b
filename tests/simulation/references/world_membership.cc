#include <algorithm>
#include <utility>

#include "gradwire/tests/simulation/references/world.h"

// Connections, failure detection, and the group's log.
namespace gradwire::references_simulation {

using rpc::FailureDetector;
using rpc::Roster;
using rpc::RosterEntry;

namespace {

constexpr int kMaxJoinAttempts = 4;

absl::Time at(Time now) { return absl::UnixEpoch() + absl::Microseconds(now); }

}  // namespace

void World::establish(int a, int b) {
  if (network_.linked(a, b)) return;
  Node& first = *nodes_[a];
  Node& second = *nodes_[b];
  // Both have to read the other's Hello.
  if (first.reader_until > now_ || second.reader_until > now_) return;
  for (auto [node, peer] : {std::pair(&first, &second), std::pair(&second, &first)}) {
    // A node also accepts a peer whose join it has not read yet: without heartbeats, that peer would declare
    // this node dead.
    if (!node->running || !node->member || node->references.peers().is_lost(peer->incarnation)) return;
  }
  network_.link(a, b, true);
  const bool reconnects = network_.broken(a, b);
  network_.set_broken(a, b, false);
  if (trace_)
    trace_->line(now_, node_name(a), " and ", node_name(b), reconnects ? " connect again" : " connect");
  for (auto [node, peer] : {std::pair(&first, &second), std::pair(&second, &first)}) {
    cover(Machine::kWatched, static_cast<int>(node->detector.state(peer->incarnation)), Coverage::kConnected);
    FailureDetector::Actions watching;
    node->detector.connected(peer->incarnation, at(now_), watching);
    process(*node, watching);
    if (!reconnects) continue;
    Actions actions;
    node->references.link_restored(peer->incarnation, actions);
    process(*node, actions);
  }
}

void World::break_link(int a, int b) {
  // There may be no connection yet: then the message was lost while the two were connecting.
  network_.set_broken(a, b, true);
  network_.link(a, b, false);
  for (auto [node, peer] : {std::pair(a, b), std::pair(b, a)}) {
    if (!nodes_[node]->running) continue;
    scheduler_.add(now_ + random_.between(100, 5000), Event::Kind::kBroken, node, peer);
  }
}

void World::schedule_tick(Node& node) {
  const absl::Time next = node.detector.next();
  if (next == absl::InfiniteFuture()) return;
  const Time time = std::max(now_, absl::ToInt64Microseconds(next - absl::UnixEpoch()));
  if (node.next_tick > now_ && node.next_tick <= time) return;
  node.next_tick = time;
  scheduler_.add(time, Event::Kind::kTick, node.index);
}

void World::tick(Node& node) {
  // After a pause a node may read the clock long before it reads the messages that arrived meanwhile.
  const bool receive_first = node.paused_until + 1000 < now_ || random_.below(2) == 0;
  if (node.reader_until <= now_) node.received_from |= std::exchange(node.arrived_from, 0);
  FailureDetector::Actions actions;
  for (int peer = 0; receive_first && node.received_from != 0; ++peer) {
    if ((node.received_from >> peer & 1) == 0) continue;
    node.received_from &= ~(1u << peer);
    const uint64_t incarnation = peer + 1;
    if (node.references.peers().is_lost(incarnation)) continue;
    cover(Machine::kWatched, static_cast<int>(node.detector.state(incarnation)), Coverage::kReceived);
    node.detector.received(incarnation, at(now_), actions);
  }
  node.detector.tick(at(now_), actions);
  process(node, actions);
  if (node.running) schedule_tick(node);
}

void World::process(Node& node, FailureDetector::Actions& actions) {
  if (!violation_.empty()) return;
  // A heartbeat between running nodes arrives at once: its delay is too short to matter.
  for (uint64_t peer : actions.heartbeat) {
    const int index = static_cast<int>(peer) - 1;
    if (coverage_) cover(Machine::kWatched, static_cast<int>(node.detector.state(peer)), Coverage::kTicked);
    if (nodes_[index]->running && reachable(node.index, index) && network_.linked(node.index, index)) {
      Node& receiver = *nodes_[index];
      (receiver.reader_until > now_ ? receiver.arrived_from : receiver.received_from) |= 1u << node.index;
    }
  }
  std::sort(actions.probe.begin(), actions.probe.end());
  for (uint64_t peer : actions.probe) {
    scheduler_.add(now_ + random_.between(200, 3000), Event::Kind::kProbed, node.index,
                   static_cast<int>(peer) - 1);
  }
  std::sort(actions.changes.begin(), actions.changes.end(),
            [](const auto& a, const auto& b) { return a.worker < b.worker; });
  for (const FailureDetector::Change& change : actions.changes) {
    if (trace_) {
      static constexpr const char* kStates[] = {"unwatched", "alive", "suspect", "dead"};
      trace_->line(now_, node_name(node.index), " considers ", worker(change.worker), " ",
                   kStates[static_cast<int>(change.state)]);
    }
    if (change.state != FailureDetector::State::kDead) continue;
    lose(node, change.worker);
    declare_dead(node, change.worker, "its host refuses connections", false);
  }
  std::sort(actions.accuse.begin(), actions.accuse.end());
  for (uint64_t peer : actions.accuse) {
    cover(Machine::kWatched, static_cast<int>(node.detector.state(peer)), Coverage::kAccused);
    declare_dead(node, peer, "no message arrived from it", true);
  }
  schedule_tick(node);
}

void World::probed(Node& node, Node& peer) {
  const uint64_t incarnation = peer.incarnation;
  if (node.references.peers().is_lost(incarnation) || network_.linked(node.index, peer.index)) return;
  const int state = static_cast<int>(node.detector.state(incarnation));
  FailureDetector::Actions actions;
  if (!reachable(node.index, peer.index)) {
    cover(Machine::kWatched, state, Coverage::kUnreachable);
    node.detector.unreachable(incarnation, at(now_), actions);
  } else if (!peer.running) {
    cover(Machine::kWatched, state, Coverage::kRefused);
    node.detector.refused(incarnation, at(now_), actions);
  } else if (peer.paused_until <= now_) {
    establish(node.index, peer.index);
  }
  // The host accepted the connection, but the peer did not complete the handshake. That proves neither life
  // nor death.
  if (peer.running && reachable(node.index, peer.index) && !network_.linked(node.index, peer.index)) {
    cover(Machine::kWatched, state, Coverage::kUnreachable);
    node.detector.unreachable(incarnation, at(now_), actions);
  }
  process(node, actions);
}

void World::lose(Node& node, uint64_t dead) {
  if (node.references.peers().is_lost(dead)) return;
  cover(Machine::kFence, fence_state(node), Coverage::kLose);
  if (coverage_) {
    for (const rpc::Id& fork : node.references.holder().forks_of(dead)) {
      cover(Machine::kHeldFork, held_state(node, fork), Coverage::kOwnerLost);
    }
  }
  if (trace_) trace_->line(now_, node_name(node.index), " loses ", worker(dead));
  Actions actions;
  node.references.lose(dead, actions);
  for (Handle& handle : node.handles) handle.failed |= handle.owner == dead;
  process(node, actions);
  if (trace_) trace_tables(node);
}

void World::fence(Node& node, uint64_t dead) {
  if (!violation_.empty()) return;
  cover(Machine::kFence, fence_state(node), Coverage::kFenced);
  if (trace_)
    trace_->line(now_, node_name(node.index), " knows that the group has agreed on the death of ",
                 worker(dead));
  Actions actions;
  node.references.fence(dead, actions);
  process(node, actions);
  if (trace_) trace_tables(node);
}

void World::declare_dead(Node& node, uint64_t dead, const char* why, bool accusation) {
  if (!violation_.empty()) return;
  if (!scenario_.store) return lose_alone(node, dead);
  if (node.store_lost) {
    lose_alone(node, dead);
    accusation = false;
  }
  const uint32_t bit = 1u << (dead - 1);
  if (node.accusing & bit) return;
  node.accusing |= bit;
  RosterEntry entry{.kind = RosterEntry::Kind::kDeath, .worker = {.incarnation = dead}};
  entry.by = node.incarnation;
  if (trace_)
    trace_->line(now_, node_name(node.index), " is about to declare ", worker(dead), " dead: ", why);
  request(node, std::move(entry), accusation);
}

void World::lose_alone(Node& node, uint64_t dead) {
  check_blame(node.index, static_cast<int>(dead) - 1);
  lose(node, dead);
  node.detector.remove(dead);
}

void World::request(Node& node, RosterEntry entry, bool accusation) {
  appends_.push_back({.entry = std::move(entry), .accusation = accusation});
  scheduler_.add(now_ + some_delay(), Event::Kind::kAppend, node.index, 0,
                 static_cast<uint32_t>(appends_.size() - 1));
}

void World::try_append(Node& node, uint32_t index) {
  if (!node.running) return;
  if (!reachable(node.index, kStore)) {
    scheduler_.add(now_ + random_.between(5000, 30'000), Event::Kind::kAppend, node.index, 0, index);
    return;
  }
  // A worker that writes without reading the log first must do no harm either.
  const bool skips_read = !calm_ && random_.below(8) == 0;
  if (node.roster.position() != log_.size() && !skips_read) {
    // Another worker wrote first, and its entry may make this one unnecessary. Read the log, then try again.
    follow(node);
    scheduler_.add(now_ + some_delay(), Event::Kind::kAppend, node.index, 0, index);
    return;
  }
  const RosterEntry entry = appends_[index].entry;
  const Roster::Change expected = node.roster.check(entry);
  if (entry.kind == RosterEntry::Kind::kDeath) {
    const uint64_t dead = entry.worker.incarnation;
    const bool refuted =
        appends_[index].accusation && node.detector.state(dead) == FailureDetector::State::kAlive;
    const bool already_gone = !skips_read && node.roster.status(dead) != Roster::Status::kMember;
    if (refuted || (already_gone && random_.below(4) != 0)) {
      node.accusing &= ~(1u << (dead - 1));
      return;
    }
  } else if (entry.kind == RosterEntry::Kind::kJoin && expected.what != Roster::Change::What::kJoined) {
    if (expected.what == Roster::Change::What::kNothing) return;
    Node& other = *nodes_[expected.worker.incarnation - 1];
    if (!other.running) {
      declare_dead(node, other.incarnation, "it has the name, and its host refuses connections", false);
    } else if (++appends_[index].attempts >= kMaxJoinAttempts) {
      return stop(node, "finds its name taken");
    }
    scheduler_.add(now_ + random_.between(2000, 40'000), Event::Kind::kAppend, node.index, 0, index);
    // In one of four cases the entry is written all the same: the log must refuse it.
    if (random_.below(4) != 0) return;
  }
  const Roster::Change change = append_to_log(entry);
  if (entry.kind == RosterEntry::Kind::kJoin && expected.what == Roster::Change::What::kJoined &&
      change.what != expected.what) {
    // The node had not read yet that another worker has the name.
    scheduler_.add(now_ + random_.between(2000, 40'000), Event::Kind::kAppend, node.index, 0, index);
  }
  for (const auto& other : nodes_) {
    if (!other->running) continue;
    scheduler_.add(now_ + random_.between(100, calm_ ? 2000 : scenario_.log_delay), Event::Kind::kFollow,
                   other->index);
  }
}

Roster::Change World::append_to_log(const RosterEntry& entry) {
  check_death(entry);
  const Roster::Status before = truth_.status(entry.worker.incarnation);
  const Roster::Status by = truth_.status(entry.by);
  log_.push_back(entry);
  effects_.push_back(truth_.apply(entry));
  const Roster::Change& change = effects_.back();
  using What = Roster::Change::What;
  switch (entry.kind) {
    case RosterEntry::Kind::kJoin:
      cover(Machine::kMember, static_cast<int>(before),
            change.what == What::kJoined ? Coverage::kJoins : Coverage::kJoinRefused);
      if (change.what == What::kJoined) check_joined(change.worker);
      break;
    case RosterEntry::Kind::kLeave:
      cover(Machine::kMember, static_cast<int>(before), Coverage::kLeaves);
      break;
    case RosterEntry::Kind::kDeath:
      cover(Machine::kMember, static_cast<int>(before),
            by == Roster::Status::kDead || by == Roster::Status::kLeft ? Coverage::kAccusedByGone
                                                                       : Coverage::kDies);
      break;
  }
  if (trace_) {
    static constexpr const char* kWhat[] = {"nothing",    "a join",        "name taken", "id taken",
                                            "other size", "a worker left", "a death"};
    trace_->line(now_, "log entry ", log_.size() - 1, " about ", worker(entry.worker.incarnation), ": ",
                 kWhat[static_cast<int>(change.what)]);
  }
  if (change.what == What::kLeft || change.what == What::kDied)
    nodes_[entry.worker.incarnation - 1]->gone = true;
  return change;
}

void World::follow(Node& node) {
  if (!node.running) return;
  if (!reachable(node.index, kStore)) {
    scheduler_.add(now_ + random_.between(5000, 30'000), Event::Kind::kFollow, node.index);
    return;
  }
  using What = Roster::Change::What;
  while (node.running && violation_.empty() && node.roster.position() < log_.size()) {
    const uint64_t position = node.roster.position();
    const Roster::Change change = node.roster.apply(log_[position]);
    check_same(node, position, change);
    const uint64_t subject = change.worker.incarnation;
    if (change.what == What::kJoined) {
      cover(Machine::kFence, fence_state(node), Coverage::kJoin);
      if (subject == node.incarnation) node.member = true;
      node.references.join(subject);
    } else if (change.what == What::kLeft || change.what == What::kDied) {
      if (subject == node.incarnation) {
        stop(node, change.what == What::kLeft ? "has left" : "reads that it is dead");
        return;
      }
      cover(Machine::kWatched, static_cast<int>(node.detector.state(subject)), Coverage::kRemoved);
      node.accusing &= ~(1u << (subject - 1));
      node.detector.remove(subject);
      lose(node, subject);
      fence(node, subject);
    }
  }
}

}  // namespace gradwire::references_simulation
