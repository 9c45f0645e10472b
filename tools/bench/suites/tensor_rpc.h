#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// What the workloads need of a framework that calls functions on tensors. Gradwire and torch's RPC each
// implement it in a few lines, so that both run exactly the same loops.
class TensorRpc {
 public:
  virtual ~TensorRpc() = default;
  // aten::add on worker `to`.
  virtual at::Tensor add(int to, const at::Tensor& x, const at::Tensor& y) = 0;
  // The same, begun; the result waits.
  virtual absl::AnyInvocable<at::Tensor()> add_async(int to, const at::Tensor& x, const at::Tensor& y) = 0;
  // The callee sleeps for so long and returns it.
  virtual absl::AnyInvocable<int64_t()> nap_async(int to, int64_t microseconds) = 0;
  // The callee returns the tensor it received.
  virtual at::Tensor echo(int to, const at::Tensor& x) = 0;
  // The callee reads every element and returns the sum. Three ways of giving it the tensor: the caller may
  // change it once the call has begun; the caller leaves it alone until the answer is there; the caller
  // gives it away.
  virtual double sum(int to, const at::Tensor& x) = 0;
  virtual double sum_lent(int to, const at::Tensor& x) = 0;
  virtual double sum_moved(int to, at::Tensor x) = 0;
  // A parameter of this many floats that lies at the callee, all elements the same.
  virtual at::Tensor pull(int to, int64_t floats) = 0;
  // A parameter server: subtracts the gradient from the parameters, returns the parameters.
  virtual void push_gradient(int to, const at::Tensor& gradient) = 0;
  virtual at::Tensor pull_parameters(int to) = 0;
};

// Runs a case of the suites rpc and scale from member `place.rank` against the others.
Measurement run_tensor_case(TensorRpc& rpc, const Place& place, const Task& task);

}  // namespace gradwire::bench
