#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// One step of a case of the suite autograd, as a framework takes it. Both ours and the peer's run the same
// loops.
struct TrainingStep {
  // The timed part: a context, a forward over the workers, its backward pass, the context's end. `fast`:
  // without the marking of what the loss depends on, where the framework has two modes.
  std::function<void(bool fast)> run;
  // Throws std::runtime_error unless what run() left behind is right, and lets go of it.
  std::function<void()> check;
  // The same computation in this process by libtorch alone; none: the case has no such figure.
  std::function<void()> local = nullptr;
  // How many workers the local computation's difference is divided by.
  int hops = 1;
  bool has_modes = false;
};

// Runs `step` again and again. The latency; or, for a task with `beside`, the figures that take several kinds
// of step in turn: smart_over_fast, where there are two modes, the quotient of the medians;
// overhead_per_hop_us, where there is a local computation, the difference of the medians for each hop.
Measurement run_training(const Task& task, const TrainingStep& step);

// The cases remote_add, chain and fanout: leaves of two floats each, whose gradients are known.
class Leaves {
 public:
  Leaves();
  const at::Tensor& x() const { return x_; }
  const at::Tensor& y() const { return y_; }
  // x + y + y + ..., one addition after the other, summed up and run backward by libtorch's own engine.
  void add_up_here(int additions) const;
  // The sum of `additions` times x + y, the same way.
  void fan_out_here(int additions) const;
  // Forgets the gradients of both.
  void clear() const;

 private:
  at::Tensor x_, y_;
};

// Throws std::runtime_error unless every one of the two elements is `want`.
void check_gradient(const at::Tensor& gradient, float want);

}  // namespace gradwire::bench
