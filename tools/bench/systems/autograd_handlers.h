#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/rref.h"
#include "gradwire/tools/bench/suites/mlp.h"

// What Gradwire's side of the suite autograd calls: registered in autograd_handlers.cc.
namespace gradwire::bench {

// Adds y to x here, then at the worker with the next id, and so on: `additions` times in all.
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
