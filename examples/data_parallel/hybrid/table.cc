#include "examples/data_parallel/hybrid/table.h"

#include <ATen/ATen.h>

#include "gradwire/rpc/remote_module.h"

namespace gradwire::examples {

GRADWIRE_RPC_MODULE(TableImpl, int64_t, int64_t)

TableImpl::TableImpl(int64_t words, int64_t width)
    : rows(register_parameter("rows", at::randn({words, width}).mul(0.1))) {}

at::Tensor TableImpl::forward(const at::Tensor& words) {
  return at::embedding(rows, words, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true).sum(1);
}

at::Tensor words_of(const at::Tensor& images) {
  const at::Tensor shades = images.mul(static_cast<double>(kShades - 1)).round().to(at::kLong);
  return shades + at::arange(images.size(1)) * kShades;
}

}  // namespace gradwire::examples
