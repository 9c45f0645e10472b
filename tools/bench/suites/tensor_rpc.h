#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// The interface to a framework that calls functions on tensors. Gradwire and torch's RPC each implement it in
// a few lines, so that both run exactly the same loops. An _async function begins a call; the function that
// it returns waits for the result.
class TensorRpc {
 public:
  virtual ~TensorRpc() = default;
  // A call without arguments and without a result.
  virtual void nothing(int to) = 0;
  virtual absl::AnyInvocable<void()> nothing_async(int to) = 0;
  // Calls aten::add on worker `to`.
  virtual at::Tensor add(int to, const at::Tensor& x, const at::Tensor& y) = 0;
  virtual absl::AnyInvocable<at::Tensor()> add_async(int to, const at::Tensor& x, const at::Tensor& y) = 0;
  // The callee sleeps for this time and returns it.
  virtual absl::AnyInvocable<int64_t()> nap_async(int to, int64_t microseconds) = 0;
  // The callee returns the tensor it received.
  virtual at::Tensor echo(int to, const at::Tensor& x) = 0;
  // The callee reads every element and returns the sum. There are three ways to pass the tensor:
  // - sum: the caller may change the tensor once the call has begun;
  // - sum_lent: the caller does not change it until the answer has arrived;
  // - sum_moved: the caller gives it away.
  virtual double sum(int to, const at::Tensor& x) = 0;
  virtual double sum_lent(int to, const at::Tensor& x) = 0;
  virtual double sum_moved(int to, at::Tensor x) = 0;
  // Returns a tensor that pass() may send fastest.
  virtual at::Tensor tensor_for(int to, int64_t floats) = 0;
  // The caller gives the tensor away. The callee changes its first element and returns it.
  virtual at::Tensor pass(int to, at::Tensor x) = 0;
  // Returns a parameter of the callee with this number of floats; all elements are the same.
  virtual at::Tensor pull(int to, int64_t floats) = 0;
  // The parameter server of the callee: push_gradient() subtracts the gradient from the parameters,
  // pull_parameters() returns the parameters.
  virtual void push_gradient(int to, const at::Tensor& gradient) = 0;
  virtual at::Tensor pull_parameters(int to) = 0;
  // The callee's functions model_parameters() and apply_model_gradient() (flat_mlp.h).
  virtual at::Tensor pull_model(int to) = 0;
  virtual void push_model(int to, const at::Tensor& gradient) = 0;
};

// Runs a case of the suites rpc and scale at member `endpoint.rank`, which calls the other members.
Measurement run_tensor_case(TensorRpc& rpc, const Endpoint& endpoint, const Task& task);

}  // namespace gradwire::bench
