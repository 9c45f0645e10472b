#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/autograd/graph/gradient_route.h"

namespace gradwire::autograd {

// The plan of a pass: all sent tensors that gradients of the pass will reach. A root that knows the plan
// needs no wave of MARKs.
//
// A plan has parts. Two sent tensors are in the same part if a gradient goes on from one to the other, or if
// the same worker sent both and that worker is not the root. Therefore every sent tensor that a worker
// reaches from its own tensors is in the same part, and the worker needs that part only. If the root calls
// many workers and these call no others, each part has the few tensors of one call.
//
// The root has the whole plan, every other worker has its part. Not thread-safe.
class Plan {
 public:
  // `root`: the incarnation of the root.
  explicit Plan(uint64_t root) : root_(root) {}

  static constexpr std::size_t kMaxParts = 1024;

  // Adds a sent tensor and all tensors that its gradient reaches from there; or a part that another worker
  // sent.
  void add(GradientRoute reached);

  const std::vector<GradientRoute>& parts() const { return parts_; }
  // Returns the part that `worker` needs; nullptr if the worker has sent no tensor of the plan, and for the
  // root.
  const GradientRoute* part_of(uint64_t worker) const;
  // Whether the plan can replace a wave: each part is small enough to be sent (GradientRoute::kMaxTensors),
  // and there are few enough parts that finding them, which compares all pairs, costs less than a wave.
  bool fits() const;

 private:
  // Whether a worker other than the root has sent tensors of both routes.
  bool share_worker(const GradientRoute& a, const GradientRoute& b) const;

  uint64_t root_;
  std::vector<GradientRoute> parts_;
};

}  // namespace gradwire::autograd
