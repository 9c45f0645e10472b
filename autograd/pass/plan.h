#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "autograd/graph/onward.h"

namespace gradwire::autograd {

// All sent tensors that gradients of a pass will reach, where the root knows them without a wave of MARKs.
//
// A plan has parts. Sent tensors are in one part when a gradient goes on from one to the other, or when the same worker
// sent them and it is not the root. So nothing that a worker marks for the pass leads out of its part, and the part is
// all that it has to know. A root that calls many workers, which call nobody, sends a few tensors to each.
//
// The root has the whole plan, every other worker its part. Not thread-safe.
class Plan {
 public:
  // `root`: its incarnation.
  explicit Plan(uint64_t root) : root_(root) {}

  // `reached`: a sent tensor and all that its gradient goes on to; or a part that came from another worker.
  void add(Onward reached);

  const std::vector<Onward>& parts() const { return parts_; }
  // The part that `worker` needs; nullptr if it has sent no tensor of the plan, and for the root.
  const Onward* part_of(uint64_t worker) const;
  std::size_t tensors() const;

 private:
  // Whether a worker other than the root has sent tensors of both.
  bool share_worker(const Onward& a, const Onward& b) const;

  uint64_t root_;
  std::vector<Onward> parts_;
};

}  // namespace gradwire::autograd
