#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/tests/simulation/harness/coverage_table.h"
#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/harness/trace.h"
#include "gradwire/tests/simulation/references/coverage.h"
#include "gradwire/tests/simulation/references/describe.h"
#include "gradwire/tests/simulation/references/network.h"
#include "gradwire/tests/simulation/references/node.h"
#include "gradwire/tests/simulation/references/scenario.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

// One schedule: a group of workers, the actions of their users, and faults. A seed chooses all of it. The
// world runs the production state machines (rpc/rref, rpc/membership) against a simulated network, store and
// clock, and checks the invariants. The first violation ends the schedule.
//
// The state machines return actions in no defined order (they use hash tables). The world sorts the actions
// before it uses them, so that a seed gives the same schedule in every process.
class World {
 public:
  // `coverage` and `trace` may be nullptr; otherwise they must outlive this object.
  World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace);

  // Runs the schedule. Returns the violated invariant; empty if none.
  // 1. Runs the events of the scenario.
  // 2. Heals all faults, then runs until no event except ticks is left.
  // 3. Releases all handles, then runs again: every table must become empty.
  const std::string& run();
  // Number of handled events, not counting ticks.
  uint64_t steps() const { return steps_; }
  const Scenario& scenario() const { return scenario_; }

 private:
  using Actions = rpc::References::Actions;
  using Machine = Coverage::Machine;

  // The true state of an RRef, whatever the workers know.
  struct Known {
    rpc::Id id;
    int owner = 0;
    // The value exists.
    bool value = false;
    // The value existed and has been freed.
    bool freed = false;
  };
  // An entry that a worker wants to write to the log.
  struct Append {
    rpc::RosterEntry entry;
    // The entry is an accusation: it is dropped if a message of the accused worker arrives meanwhile.
    bool accusation = false;
    int attempts = 0;
  };

  // world.cc: the events.
  void plan();
  void dispatch(const Event& event);
  bool step();
  void run_until_quiet(const char* phase);
  std::string unsettled_reason() const;
  Node& add_node(std::string name, int32_t wanted_id);
  Node* random_member();
  bool reachable(int a, int b) const { return network_.cut_until(a, b) <= now_; }
  Time some_delay();

  // world_users.cc
  void act();
  // Sends a message about a fork of another holder. It must have no effect.
  void forge(Node& node);
  void own(Node& node);
  void create(Node& node, Node& owner);
  void share(Node& node, Handle& handle, Node& receiver);
  void release(Node& node, uint64_t number);
  void unkeep(Node& node, uint64_t number);
  void add_handle(Node& node, const rpc::Id& rref, const rpc::Id& fork, uint64_t owner);
  void end_creation(Node& node, const rpc::Id& fork, bool failed);
  void end_own_creation(Node& node, const rpc::Id& fork);
  rpc::Id next_id(const Node& node) { return {node.incarnation, ++ids_}; }

  // world_messages.cc
  void send(Packet packet);
  void deliver(uint32_t index);
  void lose_call(const Packet& packet);
  void arrive(Node& node, const Packet& packet);
  void on_message(Node& node, const Packet& packet);
  void on_answer(Node& node, const Packet& packet);
  void on_share(Node& node, const Packet& packet);
  void on_create(Node& node, const Packet& packet);
  void retry(Node& node);
  // Performs the actions that a state machine requested.
  void process(Node& node, Actions& actions);

  // world_membership.cc
  void establish(int a, int b);
  void break_link(int a, int b);
  void tick(Node& node);
  void probed(Node& node, Node& peer);
  void process(Node& node, rpc::FailureDetector::Actions& actions);
  void schedule_tick(Node& node);
  void lose(Node& node, uint64_t dead);
  void fence(Node& node, uint64_t dead);
  void declare_dead(Node& node, uint64_t dead, const char* why, bool accusation);
  // Marks a worker as lost at this node only. Used without the log: the group has not agreed on the death.
  void lose_alone(Node& node, uint64_t dead);
  void follow(Node& node);
  void try_append(Node& node, uint32_t index);
  void request(Node& node, rpc::RosterEntry entry, bool accusation);
  rpc::Roster::Change append_to_log(const rpc::RosterEntry& entry);

  // world_faults.cc
  void stop(Node& node, const char* why);
  void restart(const std::string& name, int32_t id);
  void pause(Node& node, Time duration);
  void stall(Node& node, Time duration);
  void go_on(Node& node);
  // How long the node, and its communication with `other`, were disturbed so far.
  Time disturbed_for(const Node& node, const Node& other) const {
    return node.paused_for + node.stalled_for + network_.cut_for(node.index, other.index);
  }
  void cut(int a, int b, Time duration);
  void lose_store(Node& node);
  void heal();
  // Connects every member to every other, because a dead worker is detected only by a worker that connects to
  // it. Returns true if all were connected already.
  bool connect_all();

  // invariants.cc
  void violate(std::string what);
  void check_freed(Node& owner, const rpc::Id& rref);
  void check_received(Node& node, const Packet& packet, rpc::References::Received received);
  void check_death(const rpc::RosterEntry& entry);
  void check_joined(const rpc::Worker& joined);
  void check_same(Node& node, uint64_t position, const rpc::Roster::Change& change);
  void check_blame(int by, int dead);
  void check_suspected(const Node& stalled);
  void check_healed();
  void check_empty();
  // Whether the node keeps entries for workers that it has lost, while the group never agrees on their
  // deaths.
  bool keeps_for_lost(const Node& node) const;
  // Whether the invariants consider this node: it runs, and was not declared dead.
  bool live(int index) const { return nodes_[index]->running && !nodes_[index]->gone; }
  Known& known(const rpc::Id& rref) { return known_[rref_index_[rref.counter]]; }

  void cover(Machine machine, int state, int event) {
    if (coverage_ != nullptr) coverage_->hit(machine, state, event);
  }
  int held_state(const Node& node, const rpc::Id& fork) const;
  int owned_state(const Node& node, const rpc::Id& rref, const rpc::Id& fork, uint64_t holder) const;
  int fence_state(const Node& node) const;
  void trace_tables(const Node& node);

  Random random_;
  const Scenario scenario_;
  simulation::CoverageTable* const coverage_;
  simulation::Trace* const trace_;

  Time now_ = 0;
  Scheduler scheduler_;
  Network network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  // The group's log, the roster that results from it, and the change that each entry made.
  std::vector<rpc::RosterEntry> log_;
  rpc::Roster truth_;
  std::vector<rpc::Roster::Change> effects_;
  std::vector<Append> appends_;

  std::vector<Known> known_;
  std::vector<uint32_t> rref_index_;
  uint64_t ids_ = 0;
  uint64_t handles_ = 0;
  uint64_t steps_ = 0;
  // True after heal(): no new faults, user actions or packet losses.
  bool calm_ = false;
  std::string violation_;
};

}  // namespace gradwire::references_simulation
