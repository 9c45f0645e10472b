#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tools/inspect/analysis/job_view.h"

namespace gradwire::inspect {

// The calls and backward passes of a job, and which of them waits for which, from the states of all workers.
//
// A call waits for the calls and passes that its handler has made; for the call that runs on its serial
// object; and, while its flow window is full, for one of the calls in the window. A pass waits at its root
// for its parts on other workers, and each part for the calls that its nodes have made. Whether a handler
// really blocks on a call that it has made, or only started it, is not known.
class WaitGraph {
 public:
  // A call (worker 0) or the part of a pass on one worker.
  struct Key {
    uint64_t origin = 0;  // The caller, or the root of the pass.
    uint64_t number = 0;
    uint64_t worker = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Node {
    std::string callee;   // "a backward pass" for a pass.
    uint64_t caller = 0;  // Incarnations. For a pass both are its worker.
    uint64_t worker = 0;
    // At the callee or, if that does not know the call, at the caller.
    proto::CallSummary::Stage stage = proto::CallSummary::SENT;
    // The ends that reported the call.
    bool pending = false;
    bool served = false;
    bool is_pass = false;
    absl::Duration age;
    // Until the deadline; infinite without one.
    absl::Duration left = absl::InfiniteDuration();
    // The work that made it; nullptr: the program itself, or unknown.
    const Node* parent = nullptr;
    // It waits for all of these, or, if `any`, for one of them.
    std::vector<const Node*> waits_for;
    bool any = false;
  };

  explicit WaitGraph(const JobView& job);
  WaitGraph(const WaitGraph&) = delete;
  WaitGraph& operator=(const WaitGraph&) = delete;

  const std::map<Key, Node>& nodes() const { return nodes_; }
  // Cycles of nodes in which each waits for the next one, and the last one for the first, and which can
  // never go on by themselves. No node is in two of them. Nodes younger than `age` can go on.
  std::vector<std::vector<const Node*>> deadlocks(absl::Duration age) const;
  // The work that made `node`, its maker and so on: from the program's own call down to `node`.
  static std::vector<const Node*> chain_to(const Node& node);

 private:
  void add_calls(const JobView& job);
  void add_passes(const JobView& job);
  void connect(const JobView& job);
  void connect_pending(const WorkerView& worker, const proto::CallSummary& call);
  Node* find(const Key& key);
  Node* find(const proto::CallOrigin& origin, uint64_t worker);

  std::map<Key, Node> nodes_;
};

}  // namespace gradwire::inspect
