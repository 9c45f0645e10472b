#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// The GPU that all processes of the suite share.
inline const c10::Device kGpu(c10::kCUDA, 0);

// The calls that the suite cuda measures, made by one framework to worker 0. Tensors are on kGpu on both
// sides. A result is ready on the current stream.
class CudaRpc {
 public:
  virtual ~CudaRpc() = default;
  virtual at::Tensor add(const at::Tensor& x, const at::Tensor& y) = 0;
  virtual at::Tensor echo(const at::Tensor& x) = 0;
  // A parameter server of kServerFloats floats, which begin as 0.5.
  virtual void push_gradient(const at::Tensor& gradient) = 0;
  virtual at::Tensor pull_parameters() = 0;
  // One training step: opens a context, calls aten::add with the leaves, runs the backward pass of the sum
  // and closes the context. Returns the gradient of y.
  virtual at::Tensor remote_add(const at::Tensor& x, const at::Tensor& y) = 0;
};

// Measures a case. A call ends when its result is ready on the GPU and the stream has got there.
Measurement run_cuda_case(CudaRpc& rpc, const Task& task);

// Waits until the current stream of this thread has done all its work.
void finish_stream();

// The first use of CUDA in this process. One thread computes on the host.
void begin_cuda();

}  // namespace gradwire::bench
