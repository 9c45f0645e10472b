#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "gradwire/tools/bench/run/bench_process.h"
#include "gradwire/tools/bench/run/clocks.h"

namespace gradwire::bench {

// One step of a case of the suite autograd, implemented by a framework. All frameworks run the same loops.
struct TrainingStep {
  // The timed part: opens a context, runs a forward pass over the workers and its backward pass, and releases
  // the context. If the framework has two modes, `fast` selects the one that does not mark what the loss
  // depends on.
  std::function<void(bool fast)> run;
  // Checks the result of run() and releases it. Throws std::runtime_error if it is wrong.
  std::function<void()> check;
  // The same computation by libtorch in this process; nullptr if the case has no such figure.
  std::function<void()> local = nullptr;
  // The number of workers by which the difference from the local computation is divided.
  int hops = 1;
  bool has_modes = false;
};

// Runs `step` repeatedly and measures its latency. For a task with `extra_figures` it alternates between
// several kinds of step and returns figures that compare their medians:
// - smart_over_fast, if there are two modes: the median of the default mode divided by that of the fast mode;
// - overhead_per_hop_us, if there is a local computation: the difference of the medians, divided by `hops`.
// `now` returns nanoseconds of a monotonic clock.
Measurement run_training(const Task& task, const TrainingStep& step, int64_t (*now)() = &nanoseconds);

// The leaves of the cases remote_add, chain and fanout: two tensors of two floats each, whose gradients are
// known.
class Leaves {
 public:
  Leaves();
  const at::Tensor& x() const { return x_; }
  const at::Tensor& y() const { return y_; }
  // Computes the sum of x + y + y + ... with this number of additions, and its gradients with libtorch's own
  // engine.
  void add_up_locally(int additions) const;
  // As add_up_locally(), for the sum of `additions` terms x + y.
  void fan_out_locally(int additions) const;
  // Removes the gradients of both leaves.
  void clear() const;

 private:
  at::Tensor x_, y_;
};

// Throws std::runtime_error unless `gradient` has two elements, both equal to `want`.
void check_gradient(const at::Tensor& gradient, float want);

}  // namespace gradwire::bench
