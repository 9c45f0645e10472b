#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>

#include "gradwire/tools/bench/data_parallel/ddp_step.h"

namespace gradwire::bench {

LayerChain::LayerChain(int64_t layers, int64_t width) {
  for (int64_t i = 0; i < layers; ++i) {
    const at::Tensor numbers = at::arange(width * width, at::kFloat).add(i).remainder(7).sub(3);
    weights.push_back(numbers.div(static_cast<double>(width)).view({width, width}).requires_grad_());
  }
}

at::Tensor LayerChain::loss(const at::Tensor& x) const {
  at::Tensor h = x;
  for (const at::Tensor& weight : weights) h = at::mm(h, weight).relu();
  return h.sum();
}

}  // namespace gradwire::bench
