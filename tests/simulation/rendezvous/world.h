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

// One schedule: launchers that meet in one store, what becomes of their workers and what befalls them, all of
// it chosen by a seed. It runs the production state machine (tools/launch/rendezvous) against a simulated
// store, network, clocks and launchers, and watches over the invariants. The first violation ends it.
//
// When the faults are over, every launcher must get somewhere by itself: it has ended, its workers run, or it
// waits because there is no room. Then the workers end, and so must the job.
class World {
 public:
  // `coverage` and `trace` may be nullptr and outlive this.
  World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace);

  // Empty, or the violated invariant.
  const std::string& run();
  uint64_t steps() const { return steps_; }

 private:
  using Kind = Event::Kind;
  using Machine = rendezvous::Rendezvous;

  void cover(Coverage::What what);

  // world.cc: the schedule.
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

  // world_calls.cc: the driver and the store.
  void drive(SimNode& node);
  void issue(SimNode& node, Call call);
  void serve(uint32_t call);
  void answer(uint32_t call);
  void receive(SimNode& node, uint32_t call);
  void give_up(SimNode& node, uint32_t call, bool failed);
  void write(SimNode& node, const std::string& bytes);
  bool cut(const SimNode& node) const { return now_ < node.cut_until || now_ < outage_until_; }
  Time some_delay();

  // world_launcher.cc: the launcher, as far as it deals with the machine.
  void notice_news(SimNode& node);
  void on_update(SimNode& node);
  void run_workers(SimNode& node, const rendezvous::RoundInfo& round);
  void stop_workers(SimNode& node);
  void workers_event(SimNode& node, const Event& event);
  void say(SimNode& node, std::function<void(Machine&, absl::Time)> what);

  // invariants.cc
  void violate(std::string what);
  void check_write(SimNode& writer, const rendezvous::Record& after);
  void check_begun(const rendezvous::Record& after);
  void cover_write(SimNode& writer, const rendezvous::Record& before, const rendezvous::Record& after);
  void check_removed(SimNode& writer, const rendezvous::Record& before, const rendezvous::Record& after);
  void check_run(SimNode& node, const rendezvous::RoundInfo& round);
  void check_outcome(SimNode& node, const rendezvous::Outcome& outcome);
  void check_too_few(const SimNode& node);
  std::string unsettled() const;
  // The live one that goes by this id, or nullptr.
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

  // The store.
  std::optional<std::string> state_;
  std::optional<rendezvous::Record> record_;
  uint64_t revision_ = 0;
  std::map<std::string, std::string> beats_;
  std::vector<uint32_t> watching_;
  Time outage_until_ = 0;
  Time frozen_until_ = 0;

  bool calm_ = false;
  // All has settled, and the workers end.
  bool finishing_ = false;
  Time deadline_ = 0;
  bool over_ = false;

  // What the invariants are about: the rounds as nodes were told to run them, with the ranks; who did its
  // work.
  std::map<int64_t, rendezvous::RoundInfo> rounds_;
  std::set<std::pair<int64_t, int>> ranks_;
  std::set<std::pair<std::string, int64_t>> work_done_;

  uint64_t steps_ = 0;
  std::string violation_;
};

}  // namespace gradwire::rendezvous_simulation
