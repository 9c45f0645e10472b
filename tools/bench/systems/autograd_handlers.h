#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/tools/bench/suites/mlp.h"

// The functions and classes that Gradwire's calls in the suite autograd use. autograd_handlers.cc registers
// them.
namespace gradwire::bench {

// Adds y to x at this worker, then calls the worker with the next id to add y again, `additions` times in
// total.
at::Tensor add_along(const at::Tensor& x, const at::Tensor& y, int64_t additions);

// A layer of the model on its worker.
class MlpServer {
 public:
  explicit MlpServer(int64_t layer) : layer_(layer) {}
  at::Tensor forward(const at::Tensor& x) const { return layer_.forward(x); }
  std::vector<rpc::RRef<at::Tensor>> parameters() const;

 private:
  MlpLayer layer_;
};

}  // namespace gradwire::bench
