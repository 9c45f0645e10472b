// One worker of a run. chaos_test, the driver, starts it.
//   chaos_worker STORE_PORT SEED WORKER DIRECTORY [lose_services]
//
// The worker writes a status line to descriptor 3 after each step, and reads the next command of the driver
// from descriptor 4:
//   status line            next command
//   ready                  begin, or end if another worker could not join
//   played                 check DEAD,... (the dead workers; may be empty), or states after a long pause
//   states DEAD,...        check DEAD,..., or end for the worker that the others declared dead
//   checked                drop
//   empty MS | full TABLES end
//   down MS CODE MESSAGE
//   census same | census BEFORE -> AFTER
// "states" lists the workers that are dead according to this worker. A worker that could not join writes
// "unready CODE MESSAGE" and the census.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/chaos/census.h"
#include "gradwire/tests/chaos/faults.h"
#include "gradwire/tests/chaos/plan.h"
#include "gradwire/tests/chaos/program.h"
#include "gradwire/tests/chaos/services.h"

namespace chaos {
namespace {

using gradwire::rpc::Agent;
using gradwire::rpc::AgentTables;
using gradwire::rpc::RpcBackendOptions;

constexpr int kStatusDescriptor = 3;
constexpr int kCommandDescriptor = 4;

void write_status(const std::string& line) {
  const std::string text = line + "\n";
  // If the write fails, the driver has ended, and the run has no purpose any more.
  if (::write(kStatusDescriptor, text.data(), text.size()) < 0) std::_Exit(3);
}

// Returns the next command of the driver: its first word, and the rest. Exits if the driver has ended.
std::pair<std::string, std::string> read_command() {
  std::string line;
  for (char c; ::read(kCommandDescriptor, &c, 1) == 1 && c != '\n';) line += c;
  if (line.empty()) std::_Exit(3);
  return absl::StrSplit(line, absl::MaxSplits(' ', 1));
}

std::string describe(const AgentTables& tables) { return tables.describe(); }

bool empty(const AgentTables& tables) {
  return tables.pending_calls + tables.served_calls + tables.owned_rrefs + tables.held_forks +
             tables.unconfirmed_children ==
         0;
}

// Drops all references, and reports whether the agent's tables become empty.
void drop_all(Agent& agent) {
  const int64_t start = monotonic_us();
  HeldReferences::instance().close();
  AgentTables tables = agent.tables();
  while (!empty(tables)) {
    if (monotonic_us() - start > 15000000) {
      write_status(absl::StrCat("full ", describe(tables)));
      return;
    }
    absl::SleepFor(absl::Milliseconds(1));
    tables = agent.tables();
  }
  write_status(absl::StrCat("empty ", (monotonic_us() - start) / 1000));
}

void end(Agent& agent, bool graceful) {
  const int64_t start = monotonic_us();
  absl::Status status;
  try {
    agent.shutdown(graceful, absl::Seconds(15));
  } catch (const gradwire::Error& error) {
    status = error.status();
  }
  write_status(absl::StrCat("down ", (monotonic_us() - start) / 1000, " ", static_cast<int>(status.code()),
                            " ", absl::StrReplaceAll(status.message(), {{"\n", " "}})));
}

// Returns the workers that are dead according to this one, or only this one if it has learnt that the others
// declared it dead.
std::string dead_workers(Agent& agent, const Plan& plan, int worker) {
  const int64_t start = monotonic_us();
  while (true) {
    std::vector<int> dead;
    for (int other = 0; other < Plan::kWorkers; ++other) {
      const gradwire::rpc::WorkerState state = agent.worker_state(worker_name(other));
      if (other != worker && state == gradwire::rpc::WorkerState::kDead) dead.push_back(other);
    }
    // Wait, because the message about a death may still be in flight. For an outcast all other workers are
    // dead.
    const std::size_t expected = plan.outcast() == worker ? Plan::kWorkers - 1 : plan.outcast() ? 1 : 0;
    if (dead.size() == expected || monotonic_us() - start > 15000000) {
      if (dead.size() == Plan::kWorkers - 1) dead = {worker};
      return absl::StrJoin(dead, ",");
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// Executes the steps of a run, from the started agent to its end.
void take_part(Agent& agent, const Plan& plan, int worker, Faults& faults) {
  const std::shared_ptr<void> changes =
      agent.on_worker_change([](const gradwire::rpc::WorkerInfo&, gradwire::rpc::WorkerState state) {
        if (state == gradwire::rpc::WorkerState::kSuspect) CallLog::instance().note("suspected", 1);
      });
  write_status("ready");
  if (read_command().first == "end") return end(agent, /*graceful=*/false);
  faults.begin();
  run_program(agent.shared_from_this(), plan, worker);
  faults.end();
  write_status("played");

  auto next = read_command();
  if (next.first == "states") {
    write_status(absl::StrCat("states ", dead_workers(agent, plan, worker)));
    next = read_command();
  }
  if (next.first == "end") {
    HeldReferences::instance().close();
    return end(agent, plan.graceful);
  }
  std::set<int> dead;
  for (absl::string_view name : absl::StrSplit(next.second, ',', absl::SkipEmpty())) {
    int number = 0;
    if (absl::SimpleAtoi(name, &number)) dead.insert(number);
  }
  check_workers_and_references(agent.shared_from_this(), worker, dead);
  write_status("checked");
  (void)read_command();
  drop_all(agent);
  CallLog::instance().note("repeated", static_cast<int64_t>(agent.statistics().calls_repeated));
  (void)read_command();
  end(agent, plan.graceful);
}

int run(int port, uint64_t seed, int worker, const std::string& directory, bool lose_services) {
  const Plan plan = make_plan(seed);
  CallLog::instance().open(absl::StrCat(directory, "/", worker_name(worker), ".calls"));
  Faults faults(plan, worker, lose_services);
  Census before = take_census();
  {
    RpcBackendOptions options;
    options.store = std::make_shared<gradwire::store::PrefixStore>(
        directory, std::make_shared<gradwire::store::TcpStore>(
                       "127.0.0.1", port, gradwire::store::TcpStoreOptions{.timeout = absl::Seconds(20)}));
    options.transports = plan.transports;
    options.join_timeout = plan.join_timeout;
    options.num_worker_threads = 4;
    options.heartbeat.interval = Plan::kHeartbeat;
    options.heartbeat.suspect_after = Plan::kSuspectAfter;
    if (plan.long_pause) options.heartbeat.dead_after = Plan::kDeadAfterOfLongPause;
    if (faults.any()) {
      options.hooks =
          gradwire::rpc::wrap_transports([&](auto transport) { return faults.wrap(std::move(transport)); });
    }
    std::shared_ptr<Agent> agent;
    try {
      agent = Agent::start(worker_name(worker), worker, Plan::kWorkers, options);
    } catch (const gradwire::Error& error) {
      write_status(absl::StrCat("unready ", static_cast<int>(error.status().code()), " ",
                                absl::StrReplaceAll(error.what(), {{"\n", " "}})));
    }
    options.store = nullptr;
    if (agent != nullptr) take_part(*agent, plan, worker, faults);
  }
  Census after;
  const bool same = returns_to(before, after);
  write_status(same ? std::string("census same")
                    : absl::StrCat("census ", before.to_string(), " -> ", after.to_string()));
  return 0;
}

}  // namespace
}  // namespace chaos

int main(int argc, char** argv) {
  int port = 0, worker = 0;
  uint64_t seed = 0;
  if (argc < 5 || argc > 6 || !absl::SimpleAtoi(argv[1], &port) || !absl::SimpleAtoi(argv[2], &seed) ||
      !absl::SimpleAtoi(argv[3], &worker)) {
    std::fputs("usage: chaos_worker STORE_PORT SEED WORKER DIRECTORY [lose_services]\n", stderr);
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  try {
    return chaos::run(port, seed, worker, argv[4], argc == 6);
  } catch (const gradwire::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
