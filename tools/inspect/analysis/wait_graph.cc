#include "gradwire/tools/inspect/analysis/wait_graph.h"

#include <algorithm>
#include <set>
#include <utility>

namespace gradwire::inspect {

namespace {

constexpr std::size_t kLongestChain = 256;

absl::Duration left_of(int64_t left_us) {
  return left_us < 0 ? absl::InfiniteDuration() : absl::Microseconds(left_us);
}

WaitGraph::Key key_of(const proto::CallIdentity& call) { return {call.caller(), call.call_id(), 0}; }

}  // namespace

WaitGraph::WaitGraph(const JobView& job) {
  add_calls(job);
  add_passes(job);
  connect(job);
}

// Both ends of a call may have reported it. What the callee says about its stage is more exact.
void WaitGraph::add_calls(const JobView& job) {
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    const uint64_t self = worker.record.incarnation();
    for (const proto::CallSummary& call : worker.state.pending()) {
      Node& node = nodes_[key_of(call.identity())];
      node.callee = call.callee();
      node.caller = self;
      node.worker = call.peer();
      node.pending = true;
      node.age = std::max(node.age, absl::Microseconds(call.age_us()));
      node.left = std::min(node.left, left_of(call.left_us()));
      if (!node.served) node.stage = call.stage();
    }
    for (const proto::CallSummary& call : worker.state.served()) {
      Node& node = nodes_[key_of(call.identity())];
      node.callee = call.callee();
      node.caller = call.peer();
      node.worker = self;
      node.served = true;
      node.age = std::max(node.age, absl::Microseconds(call.age_us()));
      node.left = std::min(node.left, left_of(call.left_us()));
      node.stage = call.stage();
    }
  }
}

void WaitGraph::add_passes(const JobView& job) {
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    const uint64_t self = worker.record.incarnation();
    for (const proto::PassSummary& pass : worker.state.autograd().passes()) {
      Node& node = nodes_[{pass.root(), pass.number(), self}];
      node.callee = "a backward pass";
      node.caller = node.worker = self;
      node.stage = proto::CallSummary::RUNNING;
      node.is_pass = node.served = true;
      node.age = absl::Microseconds(pass.age_us());
      node.left = left_of(pass.left_us());
    }
  }
}

WaitGraph::Node* WaitGraph::find(const Key& key) {
  auto found = nodes_.find(key);
  return found == nodes_.end() ? nullptr : &found->second;
}

WaitGraph::Node* WaitGraph::find(const proto::CallOrigin& origin, uint64_t worker) {
  switch (origin.kind()) {
    case proto::CallOrigin::CALL:
      return find({origin.incarnation(), origin.number(), 0});
    case proto::CallOrigin::PASS:
      return find({origin.incarnation(), origin.number(), worker});
    default:
      return nullptr;
  }
}

void WaitGraph::connect_pending(const WorkerView& worker, const proto::CallSummary& call) {
  Node& node = *find(key_of(call.identity()));
  if (Node* parent = find(call.parent(), worker.record.incarnation()); parent != nullptr && parent != &node) {
    node.parent = parent;
    parent->waits_for.push_back(&node);
  }
  if (call.stage() != proto::CallSummary::WAITING_FOR_CREDIT || node.served) return;
  // The calls that are in the window.
  node.any = true;
  for (const proto::CallSummary& other : worker.state.pending()) {
    if (other.peer() == call.peer() && other.stage() == proto::CallSummary::SENT) {
      node.waits_for.push_back(find(key_of(other.identity())));
    }
  }
}

void WaitGraph::connect(const JobView& job) {
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::CallSummary& call : worker.state.pending()) connect_pending(worker, call);
    for (const proto::CallSummary& call : worker.state.served()) {
      if (!call.has_waits_for()) continue;
      const Node* holder = find(key_of(call.waits_for()));
      // A holder that is not in any list has ended since, or there are too many calls.
      if (holder != nullptr) find(key_of(call.identity()))->waits_for.push_back(holder);
    }
    const uint64_t self = worker.record.incarnation();
    for (const proto::PassSummary& pass : worker.state.autograd().passes()) {
      // The parts on other workers answer the root and one another. Only the root waits for their ends.
      if (pass.root() != self) continue;
      Node& root = *find({pass.root(), pass.number(), self});
      if (Node* parent = find(pass.parent(), self); parent != nullptr && parent != &root) {
        root.parent = parent;
        parent->waits_for.push_back(&root);
      }
      for (const uint64_t other : pass.waits_for()) {
        Node* part = other == self ? nullptr : find({pass.root(), pass.number(), other});
        if (part == nullptr) continue;
        if (part->parent == nullptr) part->parent = &root;
        root.waits_for.push_back(part);
      }
    }
  }
}

// 1. Find the nodes that can never go on, by removing those that can: a node that waits for nothing, or for
//    nodes that can all go on (`any`: for one that can).
// 2. Each node that is left waits for another one that is left. So a walk along these ends in a cycle.
std::vector<std::vector<const WaitGraph::Node*>> WaitGraph::deadlocks(absl::Duration age) const {
  std::set<const Node*> stuck;
  for (const auto& [key, node] : nodes_) {
    if (!node.waits_for.empty() && node.age >= age) stuck.insert(&node);
  }
  const auto is_stuck = [&](const Node* node) { return stuck.contains(node); };
  for (bool changed = true; changed;) {
    changed = std::erase_if(stuck, [&](const Node* node) {
                return node->any ? !std::all_of(node->waits_for.begin(), node->waits_for.end(), is_stuck)
                                 : std::none_of(node->waits_for.begin(), node->waits_for.end(), is_stuck);
              }) > 0;
  }
  std::vector<std::vector<const Node*>> cycles;
  std::set<const Node*> visited;
  for (const auto& [key, start] : nodes_) {
    std::vector<const Node*> path;
    const Node* at = &start;
    while (is_stuck(at) && visited.insert(at).second) {
      path.push_back(at);
      at = *std::find_if(at->waits_for.begin(), at->waits_for.end(), is_stuck);
    }
    // A walk that meets an earlier one leads into a cycle that is known.
    const auto begin = std::find(path.begin(), path.end(), at);
    if (begin != path.end()) cycles.emplace_back(begin, path.end());
  }
  return cycles;
}

std::vector<const WaitGraph::Node*> WaitGraph::chain_to(const Node& node) {
  std::vector<const Node*> chain;
  for (const Node* at = &node; at != nullptr; at = at->parent) {
    // Workers may report anything, also a cycle of parents, or chains that nobody reads to their end.
    if (chain.size() >= kLongestChain || std::find(chain.begin(), chain.end(), at) != chain.end()) break;
    chain.push_back(at);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

}  // namespace gradwire::inspect
