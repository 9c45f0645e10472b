#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/tests/simulation/harness/coverage_table.h"
#include "gradwire/tests/simulation/harness/trace.h"
#include "gradwire/tests/simulation/pass/coverage.h"
#include "gradwire/tests/simulation/pass/graph.h"
#include "gradwire/tests/simulation/pass/scenario.h"
#include "gradwire/tests/simulation/pass/scheduler.h"
#include "gradwire/tests/simulation/pass/state.h"

namespace gradwire::pass_simulation {

// A group of workers in one schedule: contexts with a completed forward pass, backward passes over them, and
// the release of the contexts. The production state machines (PassState, ContextTable, GradientRoute) decide.
// The world replaces the code that drives them in production (Pass, Contexts, Engine, LocalExecutor, the
// calls of Agent) and performs the same steps. Wherever that code unlocks its mutex, other events may occur
// in between.
class World {
 public:
  World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace);

  // Runs the schedule to its end. Returns the first violation of an invariant; empty if none.
  const std::string& run();
  // Number of handled events.
  uint64_t steps() const { return steps_; }

 private:
  using Actions = autograd::PassState::Actions;
  using Kind = Call::Kind;

  // world.cc: the schedule.
  void plan();
  void plan_passes(int context);
  void dispatch(const Event& event);
  void run_until_quiet();
  void fault();
  void kill(int worker);
  void learn(uint32_t arg);
  Time some_delay();
  // Returns, by chance, whether other events occur before the next step, as if another thread ran.
  bool preempted() { return random_.per_mille(scenario_.preemptions); }

  // calls.cc: calls that are repeated until they are answered.
  int call(Call call);
  void send(int call);
  void complete(int call, const Answer& answer);
  void on_request(int call);
  void on_retry(int call);
  void reply(int arrival, absl::Status status, std::vector<uint64_t> workers = {});
  void fail_calls(int worker, int dead);
  void serve(int arrival);

  // contexts.cc: Contexts and Engine.
  void open(int context);
  void release_by_user(int context);
  void release_context(int worker, int context, int from);
  void serve_cleanup(int worker, int context, uint64_t low, int from);
  void end_contexts(int worker, int context, std::vector<autograd::ContextTable::Ended> ended, uint64_t low,
                    int from);
  // Returns false if the context was released.
  bool enter(int worker, int context, int from, Coverage::ContextEvent event);
  void mark_notified(int worker, const rpc::Id& below);
  bool touch(int worker, int context, int to);
  void straggle();
  void lose(int worker, int dead, int step);
  int find_context(const rpc::Id& id) const;
  int find_pass(int worker, int pass);
  int add_part(int worker, int pass);

  // parts.cc: Pass, the messages of other workers.
  void serve_wave(int arrival);
  // Ends a step of a request. Returns true if the next step was scheduled for later, because other events
  // occur in between; false if the caller must continue with it.
  bool continue_later(int arrival);
  void begin(int part);
  void begin_fast(int part);
  // Marks what is planned for the part's worker. Returns whether a gradient goes on from there to another
  // worker.
  bool begin_planned(int part);
  // Marks the messages of the part's worker that `plan` names. Returns as begin_planned().
  bool mark_planned(Part& part, const autograd::GradientRoute& plan);
  // Handles the loss of `worker` if it was lost before this part depended on it: that loss is not reported
  // again.
  void notice_lost(int part, int worker);
  void begin_run(Part& part);
  void serve_run(int arrival);
  void serve_finish(int arrival);
  void drain(int part);
  void ran(int part);
  void ship(int part, const Tensors& tensors);

  // pending_actions.cc: Pass, its actions, and the answers to its calls.
  void worker_lost(int part, int dead);
  void abort(int part, const absl::Status& reason);
  void abort_asked(int part, const absl::Status& reason);
  void on_answer(const Call& call, const Answer& answer);
  static std::vector<uint64_t> receivers_of(const std::vector<WaveMessage>& messages);
  std::vector<WaveMessage> wave_messages(const Part& part, const Executor::Reach& reach) const;
  void apply_actions(int part, Actions actions, std::vector<WaveMessage> wave = {},
                     std::vector<uint64_t> numbers = {}, bool drains = false);
  void perform(PendingActions& pending);
  void send_owed_reply(Part& part, uint64_t number, absl::Status status, std::vector<uint64_t> workers);
  uint64_t add_reply(Part& part, int arrival, bool wave);

  // root.cc: backward().
  void begin_pass(int pass);
  void start(int pass);
  void run_roots(int pass);
  void complete_pass(int pass, const absl::Status& status);

  // invariants.cc
  void violate(std::string what);
  void check_success(const PassInfo& pass);
  void check_failure(const PassInfo& pass);
  void check_quiet();
  void check_released();
  void check_actions(const Part& part, const Actions& actions);
  void count_shipped(PassInfo& pass, const Tensors& tensors);
  uint32_t refusing(const ContextInfo& context, int sender) const;
  // Returns, as a bit set, the workers that are notified of the end of a context unless they die.
  uint32_t notified_of_end(const ContextInfo& context) const;

  // trace.cc
  std::string describe(const Call& call) const;
  std::string describe(const std::vector<Tensors>& tensors) const;
  std::string name(const PassInfo& pass) const;
  template <class... Args>
  void trace(const Args&... args) {
    if (trace_ != nullptr) trace_->line(now_, args...);
  }

  int state_of(const Part& part) const;
  void cover(const Part& part, Coverage::PartEvent event) {
    if (coverage_ != nullptr) coverage_->hit(machine_of(part), state_of(part), event);
  }
  void cover(int worker, int context, Coverage::ContextEvent event);
  Coverage::Machine machine_of(const Part& part) const {
    return passes_[part.pass].root == part.worker ? Coverage::kRoot : Coverage::kParticipant;
  }
  const Graph& graph_of(const Part& part) const { return contexts_[passes_[part.pass].context].graph; }

  Random random_;
  const Scenario scenario_;
  simulation::CoverageTable* const coverage_;
  simulation::Trace* const trace_;

  Time now_ = 0;
  Scheduler scheduler_;
  std::vector<WorkerState> workers_;
  std::vector<ContextInfo> contexts_;
  std::vector<PassInfo> passes_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::deque<Call> calls_;
  std::deque<Arrival> arrivals_;
  std::deque<Answer> answers_;
  std::deque<PendingActions> pending_actions_;
  uint64_t steps_ = 0;
  uint32_t nodes_run_ = 0;
  // True when no more messages are lost.
  bool calm_ = false;
  std::string violation_;
};

inline std::string worker_name(int worker) { return absl::StrCat("w", worker); }

}  // namespace gradwire::pass_simulation
