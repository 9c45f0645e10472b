// Serial objects for which many calls wait.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

// A call, by its caller and number.
using CallKey = std::pair<uint64_t, uint64_t>;

// The calls that wait until one call has left its object.
struct Queue {
  std::string holder;  // The function that runs on the object.
  uint64_t calls = 0;
  absl::Duration oldest;
  // Number of the calls by function and caller.
  std::map<std::pair<std::string, uint64_t>, uint64_t> waiters;
};

std::string class_of(const std::string& method) { return method.substr(0, method.rfind("::")); }

std::map<CallKey, Queue> queues_of(const WorkerView& worker) {
  std::map<CallKey, Queue> queues;
  for (const proto::CallSummary& call : worker.state.served()) {
    if (!call.has_waits_for()) continue;
    Queue& queue = queues[{call.waits_for().caller(), call.waits_for().call_id()}];
    queue.holder = call.waits_for_callee();
    ++queue.calls;
    queue.oldest = std::max(queue.oldest, absl::Microseconds(call.age_us()));
    ++queue.waiters[{call.callee(), call.peer()}];
  }
  return queues;
}

}  // namespace

// A queue behind a call that belongs to a deadlock is a part of that finding. The worker reads its calls one
// after the other, and the object may go on meanwhile, so one queue may appear as two. The longer one is
// reported, for each class.
std::vector<Finding> find_hot_objects(const JobView& job, const WaitGraph& graph,
                                      const Thresholds& thresholds) {
  std::set<const WaitGraph::Node*> members;
  for (const auto& cycle : graph.deadlocks(thresholds.deadlock)) members.insert(cycle.begin(), cycle.end());
  std::set<CallKey> stuck;
  for (const auto& [key, node] : graph.nodes()) {
    if (members.contains(&node)) stuck.insert({key.origin, key.number});
  }
  std::vector<Finding> findings;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    std::map<std::string, Queue> longest;
    for (const auto& [holder, queue] : queues_of(worker)) {
      if (queue.calls < thresholds.hot_queue || queue.oldest < thresholds.hot_wait) continue;
      if (stuck.contains(holder)) continue;
      Queue& known = longest[class_of(queue.holder)];
      if (queue.calls > known.calls) known = queue;
    }
    for (const auto& [name, queue] : longest) {
      Finding& finding = findings.emplace_back();
      finding.kind = Finding::Kind::kHotObject;
      finding.title = absl::StrCat(
          "hot object: ", queue.calls, queue.calls == 1 ? " call waits" : " calls wait",
          " for a turn on an object of class ", in_quotes(name), " at ", in_quotes(worker.record.name()),
          ", where ", in_quotes(queue.holder), " runs; the oldest waits for ", text_of(queue.oldest));
      finding.age = queue.oldest;
      finding.culprits = {worker.record.incarnation()};
      for (const auto& [waiter, count] : queue.waiters) {
        finding.details.push_back(
            absl::StrCat(count, " of ", in_quotes(waiter.first), ", called by ", job.name_of(waiter.second)));
      }
    }
  }
  return findings;
}

}  // namespace gradwire::inspect
