#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/tests/simulation/harness/coverage_table.h"
#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/harness/trace.h"
#include "gradwire/tests/simulation/rendezvous/coverage.h"
#include "gradwire/tests/simulation/rendezvous/node.h"
#include "gradwire/tests/simulation/rendezvous/scenario.h"
#include "gradwire/tests/simulation/rendezvous/scheduler.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous_simulation {

// Simulates one schedule: launchers with a rendezvous in one store, their workers, and faults, all chosen by
// a seed. Runs the production state machine (tools/launch/rendezvous) with a simulated store, network, clocks
// and launchers, and checks the invariants. The first violation ends the schedule.
//
// When the faults have ended, every launcher must settle by itself: it has ended, its workers run, or it
// waits because there is no room. Then the workers end, and the job must end.
class World {
 public:
  // `coverage` and `trace` may be nullptr; they must outlive this object.
  World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace);

  // Runs the schedule. Returns an empty string, or the violated invariant.
  const std::string& run();
  uint64_t steps() const { return steps_; }

 private:
  using Kind = Event::Kind;
  using Machine = rendezvous::Rendezvous;

  void cover(Coverage::What what);

  // In world.cc: the schedule.
  void plan();
  void dispatch(const Event& event);
  void start(int launcher);
  void fault(const Event& event);
  void crash(SimNode& node);
  void become_calm();
  void check_settled();
  SimNode* random_live();
  absl::Time local(const SimNode& node) const;
  Time global(const SimNode& node, absl::Time time) const;

  // In world_calls.cc: the driver and the store.
  void drive(SimNode& node);
  void issue(SimNode& node, Call call);
  void serve(uint32_t call);
  void answer(uint32_t call);
  void receive(SimNode& node, uint32_t call);
  void give_up(SimNode& node, uint32_t call, bool failed);
  void write(SimNode& node, const std::string& bytes);
  bool cut(const SimNode& node) const { return now_ < node.cut_until || now_ < outage_until_; }
  Time some_delay();

  // In world_launcher.cc: the launcher, as far as the state machine is concerned.
  void notice_update(SimNode& node);
  void on_update(SimNode& node);
  void run_workers(SimNode& node, const rendezvous::RoundInfo& round);
  void stop_workers(SimNode& node);
  void workers_event(SimNode& node, const Event& event);
  void report(SimNode& node, std::function<void(Machine&, absl::Time)> event);

  // In invariants.cc.
  void violate(std::string what);
  void check_write(SimNode& writer, const rendezvous::Record& after);
  void check_begun(const rendezvous::Record& after);
  void cover_write(SimNode& writer, const rendezvous::Record& before, const rendezvous::Record& after);
  void check_removed(SimNode& writer, const rendezvous::Record& before, const rendezvous::Record& after);
  void check_run(SimNode& node, const rendezvous::RoundInfo& round);
  void check_outcome(SimNode& node, const rendezvous::Outcome& outcome);
  void check_too_few(const SimNode& node);
  std::string unsettled() const;
  // Returns the live node with this id, or nullptr.
  SimNode* by_id(const std::string& id);

  template <class... Parts>
  void trace(const Parts&... parts) {
    if (trace_ != nullptr) trace_->line(now_, parts...);
  }

  Random random_;
  const Scenario scenario_;
  simulation::CoverageTable* const coverage_;
  simulation::Trace* const trace_;

  Time now_ = 0;
  Scheduler scheduler_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::vector<Call> calls_;

  // State of the store.
  std::optional<std::string> state_;
  std::optional<rendezvous::Record> record_;
  uint64_t revision_ = 0;
  std::map<std::string, std::string> beats_;
  std::vector<uint32_t> watching_;
  Time outage_until_ = 0;
  Time frozen_until_ = 0;

  bool calm_ = false;
  // Whether all nodes have settled and the workers are ending.
  bool finishing_ = false;
  Time deadline_ = 0;
  bool over_ = false;

  // Data of the invariants: the rounds that nodes have run, with the ranks, and the nodes whose workers have
  // succeeded.
  std::map<int64_t, rendezvous::RoundInfo> rounds_;
  std::set<std::pair<int64_t, int>> ranks_;
  std::set<std::pair<std::string, int64_t>> work_done_;

  uint64_t steps_ = 0;
  std::string violation_;
};

}  // namespace gradwire::rendezvous_simulation
