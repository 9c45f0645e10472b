// Tests the memory of a checkpointed function whose output is on another device than its input.
#include "gradwire/autograd/checkpoint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <vector>

#include "gradwire/tests/device_autograd/device_layers.h"

namespace gradwire::autograd {
namespace {

using at::Tensor;

// The second run is enqueued on a stream that is held. Meanwhile the graph frees the input, and other tensors
// want memory of the same size on the stream of the first run.
TEST(DeviceCheckpoint, TheSecondRunReadsItsInputsBeforeTheirMemoryIsUsedAgain) {
  lag::set_lag(lag::Profile::none());
  const NothingLeft after_the_test;
  const Tensor value = at::randint(-3, 4, {1000}).to(at::kDouble);
  const Tensor x = leaf_on("lag:0", value);
  const c10::Stream forward = lag::unshared_stream(0);
  Tensor y;
  {
    const c10::StreamGuard guard(forward);
    y = checkpoint(
        [](const std::vector<Tensor>& in) { return std::vector{moved(in[0] * in[0], lag::device(1))}; },
        {x * 3})[0];
  }
  lag::synchronize_all();
  // libtorch's engine runs the node, on the stream of its output on lag:1. On lag:0 its thread has the
  // default stream.
  lag::StreamHold hold(lag::default_stream(0));
  y.sum().backward();
  y = Tensor();
  std::vector<Tensor> others;
  {
    const c10::StreamGuard guard(forward);
    for (int i = 0; i < 4; ++i) others.push_back(at::full({1000}, 100.0, x.options().requires_grad(false)));
  }
  hold.release();
  expect_same(x.grad(), 18 * value, "gradient");
}

}  // namespace
}  // namespace gradwire::autograd
