// Deadlocks, and calls that take long.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {

using Node = WaitGraph::Node;
using Stage = proto::CallSummary;

namespace {

const char* text_of_stage(const Node& node) {
  if (node.is_pass) return "in progress";
  switch (node.stage) {
    case Stage::WAITING_FOR_CREDIT:
      return "waits for room in the flow window";
    case Stage::COPYING:
      return "its tensors are being copied from a device";
    case Stage::SENT:
      return "sent";
    case Stage::BETWEEN_ATTEMPTS:
      return "its connection broke, and it will be sent again";
    case Stage::WAITING_FOR_OBJECT:
      return "waits for its object, which does not exist yet";
    case Stage::WAITING_FOR_CONTEXT:
      return "waits for its autograd context";
    case Stage::QUEUED:
      return "queued";
    case Stage::RUNNING:
      return "running";
    case Stage::NESTED:
      return "waits for nested calls";
    case Stage::ANSWERING:
      return "its result is being copied from a device";
    default:
      return "in an unknown stage";
  }
}

std::string what(const JobView& job, const Node& node) {
  return absl::StrCat(node.is_pass ? node.callee : in_quotes(node.callee), " at ", job.name_of(node.worker));
}

// "\"f\" at \"b\", called by \"a\": running for 12.0 s, deadline in 48.0 s".
std::string line_of(const JobView& job, const Node& node) {
  return absl::StrCat(
      what(job, node), node.is_pass ? "" : absl::StrCat(", called by ", job.name_of(node.caller)), ": ",
      text_of_stage(node), ", ", text_of(node.age), ", ",
      node.left == absl::InfiniteDuration() ? "no deadline"
                                            : absl::StrCat("deadline in ", text_of(node.left)));
}

void add_culprit(uint64_t worker, Finding& finding) {
  auto& culprits = finding.culprits;
  if (std::find(culprits.begin(), culprits.end(), worker) == culprits.end()) culprits.push_back(worker);
}

Finding deadlock(const JobView& job, std::vector<const Node*> cycle) {
  // The oldest call first: it began the cycle.
  std::rotate(cycle.begin(),
              std::max_element(cycle.begin(), cycle.end(),
                               [](const Node* a, const Node* b) { return a->age < b->age; }),
              cycle.end());
  Finding finding{.kind = Finding::Kind::kDeadlock, .title = "deadlock: "};
  absl::Duration first_deadline = absl::InfiniteDuration();
  finding.age = absl::InfiniteDuration();
  for (const Node* node : cycle) {
    absl::StrAppend(&finding.title, what(job, *node), " waits for ");
    finding.details.push_back(line_of(job, *node));
    add_culprit(node->worker, finding);
    first_deadline = std::min(first_deadline, node->left);
    finding.age = std::min(finding.age, node->age);
  }
  absl::StrAppend(&finding.title, what(job, *cycle.front()));
  finding.details.push_back(first_deadline == absl::InfiniteDuration()
                                ? "no call of the cycle has a deadline: it never ends"
                                : absl::StrCat("a deadline ends it in ", text_of(first_deadline)));
  return finding;
}

// Whether the call is at the end of its chain: nothing is known for which it waits.
bool is_leaf(const Node& node) { return node.waits_for.empty(); }

// The call on an earlier worker of the chain that `chain.back()` has come back to; or nullptr.
const Node* reentered(const std::vector<const Node*>& chain) {
  const Node& last = *chain.back();
  for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
    if (chain[i]->served && !chain[i]->is_pass && chain[i]->worker == last.worker) return chain[i];
  }
  return nullptr;
}

std::vector<std::string> lines_of(const JobView& job, const std::vector<const Node*>& chain) {
  std::vector<std::string> lines;
  for (const Node* node : chain) {
    lines.push_back(std::string(2 * std::min<std::size_t>(lines.size(), 8), ' ') + line_of(job, *node));
  }
  return lines;
}

Finding slow_call(const JobView& job, const Node& leaf) {
  const std::vector<const Node*> chain = WaitGraph::chain_to(leaf);
  Finding finding{.kind = Finding::Kind::kSlowCall, .details = lines_of(job, chain), .age = leaf.age};
  const WorkerView* callee = job.find(leaf.worker);
  const std::string name = what(job, leaf);
  // Where the leaf hangs, and at whom.
  if (leaf.served) {
    finding.title = absl::StrCat("slow call: ", name, ": ", text_of_stage(leaf), " for ", text_of(leaf.age));
    add_culprit(leaf.worker, finding);
  } else if (leaf.stage != Stage::SENT) {
    finding.title = absl::StrCat("slow call: ", name, " has not left ", job.name_of(leaf.caller), ": ",
                                 text_of_stage(leaf), " for ", text_of(leaf.age));
    add_culprit(leaf.caller, finding);
  } else if (callee == nullptr || !callee->answered()) {
    finding.title = absl::StrCat("stuck call: ", name, " was sent ", text_of(leaf.age), " ago, and ",
                                 job.name_of(leaf.worker), " does not answer");
    add_culprit(leaf.worker, finding);
  } else {
    finding.title = absl::StrCat(
        "stuck call: ", name, " was sent ", text_of(leaf.age), " ago, but ", job.name_of(leaf.worker),
        " does not list it: it is on its way, its answer is, or the ", "worker has too many calls");
    add_culprit(leaf.worker, finding);
  }
  return finding;
}

}  // namespace

std::vector<Finding> find_deadlocks(const JobView& job, const WaitGraph& graph,
                                    const Thresholds& thresholds) {
  std::vector<Finding> findings;
  for (std::vector<const Node*>& cycle : graph.deadlocks(thresholds.deadlock)) {
    findings.push_back(deadlock(job, std::move(cycle)));
  }
  for (const auto& [key, node] : graph.nodes()) {
    if (!is_leaf(node) || !node.served || node.is_pass || node.age < thresholds.slow_call) continue;
    const std::vector<const Node*> chain = WaitGraph::chain_to(node);
    const Node* outer = reentered(chain);
    if (outer == nullptr) continue;
    Finding& finding = findings.emplace_back();
    finding.kind = Finding::Kind::kReentry;
    finding.title =
        absl::StrCat("possible deadlock: ", what(job, node), " makes no progress for ", text_of(node.age),
                     ", while ", what(job, *outer), " waits for it: do they use the same lock or thread?");
    finding.details = lines_of(job, chain);
    finding.age = node.age;
    add_culprit(node.worker, finding);
  }
  return findings;
}

std::vector<Finding> find_slow_calls(const JobView& job, const WaitGraph& graph,
                                     const Thresholds& thresholds) {
  std::vector<Finding> findings;
  // Calls that wait for a thread, by worker.
  std::map<uint64_t, std::vector<const Node*>> queued;
  for (const auto& [key, node] : graph.nodes()) {
    if (!is_leaf(node) || node.age < thresholds.slow_call) continue;
    if (node.served && node.stage == Stage::QUEUED) {
      queued[node.worker].push_back(&node);
    } else if (!node.is_pass) {
      findings.push_back(slow_call(job, node));
    }
  }
  for (auto& [worker, nodes] : queued) {
    const Node* oldest =
        *std::max_element(nodes.begin(), nodes.end(), [](auto* a, auto* b) { return a->age < b->age; });
    Finding& finding = findings.emplace_back();
    finding.kind = Finding::Kind::kQueued;
    finding.title =
        absl::StrCat(nodes.size(), nodes.size() == 1 ? " call waits" : " calls wait", " for a thread of ",
                     job.name_of(worker), ", the oldest for ", text_of(oldest->age),
                     ": all its threads are busy, or an ordered call does not return");
    finding.details = lines_of(job, WaitGraph::chain_to(*oldest));
    finding.age = oldest->age;
    add_culprit(worker, finding);
  }
  return findings;
}

}  // namespace gradwire::inspect
