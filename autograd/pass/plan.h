#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/autograd/graph/gradient_route.h"

namespace gradwire::autograd {

// All sent tensors that gradients of a pass will reach, where the root knows them without a wave of MARKs.
//
// A plan has parts. Two sent tensors are in the same part when a gradient goes on from one to the other, or
// when the same worker sent both and that worker is not the root. So every sent tensor that a worker reaches
// from its own is in the same part, and a worker needs to know that part only. When the root calls many
// workers and these call no others, each part has the few tensors of one call.
//
// The root has the whole plan, every other worker its part. Not thread-safe.
class Plan {
 public:
  // `root`: its incarnation.
  explicit Plan(uint64_t root) : root_(root) {}

  static constexpr std::size_t kMaxParts = 1024;

  // `reached`: a sent tensor and all that its gradient goes on to; or a part that came from another worker.
  void add(GradientRoute reached);

  const std::vector<GradientRoute>& parts() const { return parts_; }
  // The part that `worker` needs; nullptr if it has sent no tensor of the plan, and for the root.
  const GradientRoute* part_of(uint64_t worker) const;
  // Whether it can replace a wave: each part can be sent (GradientRoute::kMaxTensors), and finding the parts,
  // which compares each with each, costs less than a wave.
  bool fits() const;

 private:
  // Whether a worker other than the root has sent tensors of both.
  bool share_worker(const GradientRoute& a, const GradientRoute& b) const;

  uint64_t root_;
  std::vector<GradientRoute> parts_;
};

}  // namespace gradwire::autograd
