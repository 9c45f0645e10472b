#include "gradwire/tools/inspect/analysis/analysis.h"

#include <algorithm>
#include <iterator>

namespace gradwire::inspect {

const char* name_of(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kDeadlock:
      return "deadlock";
    case Finding::Kind::kReentry:
      return "reentry";
    case Finding::Kind::kUnresponsive:
      return "unresponsive";
    case Finding::Kind::kLost:
      return "lost";
    case Finding::Kind::kLateRank:
      return "late_rank";
    case Finding::Kind::kSlowCall:
      return "slow_call";
    case Finding::Kind::kQueued:
      return "queued";
    case Finding::Kind::kFullWindow:
      return "full_window";
    case Finding::Kind::kSlowTransport:
      return "slow_transport";
    case Finding::Kind::kLeak:
      return "leak";
    case Finding::Kind::kUnusedResult:
      return "unused_result";
    case Finding::Kind::kHotObject:
      return "hot_object";
    case Finding::Kind::kSlowStore:
      return "slow_store";
    case Finding::Kind::kNoRoom:
      return "no_room";
    case Finding::Kind::kWrongClock:
      return "wrong_clock";
  }
  return "?";
}

const char* advice_of(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kDeadlock:
      return "let one of these handlers return a Future instead of waiting, or let the inner call go to "
             "another object or worker";
    case Finding::Kind::kReentry:
      return "hold no lock while a handler waits for a call that comes back to its worker";
    case Finding::Kind::kUnresponsive:
      return "check its process and its host: is it paused (kill -CONT continues it), out of memory, or "
             "without CPU time?";
    case Finding::Kind::kLost:
      return "read the end of its log and its flight record (inspect dump), and start it again";
    case Finding::Kind::kLateRank:
      return "see what that worker does instead (its calls and its log), and whether all ranks call the same "
             "operations in the same order";
    case Finding::Kind::kSlowCall:
      return "see what the handler does (a debugger, its log), and whether it needs less work or a deadline";
    case Finding::Kind::kQueued:
      return "raise RpcBackendOptions::num_worker_threads of that worker, or let its handlers return a "
             "Future instead of waiting";
    case Finding::Kind::kFullWindow:
      return "find out why that worker answers slowly, make fewer calls at a time, or raise "
             "RpcBackendOptions::flow of the caller";
    case Finding::Kind::kSlowTransport:
      return "let both workers offer shm, and share /dev/shm and the network namespace if they are "
             "containers";
    case Finding::Kind::kLeak:
      return "release RRefs at their holder when they are not needed any more: see which container keeps "
             "them";
    case Finding::Kind::kUnusedResult:
      return "use BackwardMode::kSmart, which waits only for what the loss depends on, or make the call "
             "outside of the context";
    case Finding::Kind::kHotObject:
      return "shorten the methods of this class, spread the work over several objects, or let its methods "
             "run at the same time (GRADWIRE_RPC_CLASS)";
    case Finding::Kind::kSlowStore:
      return "see whether the host of the store and the network to it are overloaded: workers join, leave "
             "and agree about deaths as slowly as the store answers";
    case Finding::Kind::kNoRoom:
      return "let the receiver release the tensors that it received, or copy those that it keeps; if it "
             "keeps few, see whether the memory of the sender's container is used up";
    case Finding::Kind::kWrongClock:
      return "set the clock of that host, and keep it right with NTP";
  }
  return "";
}

std::vector<Finding> analyze(const JobView& job, const Thresholds& thresholds) {
  const WaitGraph graph(job);
  std::vector<Finding> all;
  const auto add = [&](std::vector<Finding> part) {
    std::stable_sort(part.begin(), part.end(), [](const Finding& a, const Finding& b) {
      return a.kind != b.kind ? a.kind < b.kind : a.age > b.age;
    });
    // The most of each kind.
    std::size_t same = 0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i].advice.empty()) part[i].advice = advice_of(part[i].kind);
      same = i > 0 && part[i].kind == part[i - 1].kind ? same + 1 : 0;
      if (same < thresholds.most) all.push_back(part[i]);
    }
  };
  add(find_deadlocks(job, graph, thresholds));
  add(find_workers(job, thresholds));
  add(find_late_ranks(job, thresholds));
  add(find_slow_calls(job, graph, thresholds));
  add(find_hot_objects(job, graph, thresholds));
  add(find_unused_results(job, thresholds));
  add(find_links(job, thresholds));
  add(find_leaks(job, thresholds));
  add(find_slow_stores(job, thresholds));
  add(find_wrong_clocks(job, thresholds));
  std::stable_sort(all.begin(), all.end(),
                   [](const Finding& a, const Finding& b) { return a.kind < b.kind; });
  return all;
}

}  // namespace gradwire::inspect
