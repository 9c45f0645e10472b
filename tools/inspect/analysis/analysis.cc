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
  }
  return "?";
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
      same = i > 0 && part[i].kind == part[i - 1].kind ? same + 1 : 0;
      if (same < thresholds.most) all.push_back(part[i]);
    }
  };
  add(find_deadlocks(job, graph, thresholds));
  add(find_workers(job, thresholds));
  add(find_late_ranks(job, thresholds));
  add(find_slow_calls(job, graph, thresholds));
  add(find_links(job, thresholds));
  add(find_leaks(job, thresholds));
  std::stable_sort(all.begin(), all.end(),
                   [](const Finding& a, const Finding& b) { return a.kind < b.kind; });
  return all;
}

}  // namespace gradwire::inspect
