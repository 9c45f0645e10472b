#include "gradwire/rpc/empty_for.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/codec/torch/tensors/tensor_memory.h"
#include "gradwire/rpc/calls/agent_services.h"

namespace gradwire::rpc {

at::Tensor empty_for(const std::shared_ptr<Agent>& agent, const Destination& to, at::IntArrayRef sizes,
                     at::ScalarType dtype) {
  if (c10::isQIntType(dtype)) {
    throw Error(absl::InvalidArgumentError(
        "empty_for cannot make a quantized tensor: quantize a tensor and send it"));
  }
  const TensorExtent extent =
      value_or_throw(checked_extent(sizes, static_cast<int64_t>(c10::elementSize(dtype))));
  if (extent.numel == 0) return at::Tensor(at::detail::empty_cpu(sizes, dtype));
  transport::Buffer memory =
      value_or_throw(agent->services().allocate_for(to, static_cast<std::size_t>(extent.bytes)));
  return tensor_over(std::move(memory), sizes, {}, dtype);
}

at::Tensor empty_for(const Destination& to, at::IntArrayRef sizes, at::ScalarType dtype) {
  return empty_for(Agent::current(), to, sizes, dtype);
}

at::Tensor empty_for(const std::shared_ptr<Agent>& agent, const Destination& to, at::IntArrayRef sizes,
                     const at::TensorOptions& options) {
  if (options.layout() != at::kStrided || options.requires_grad() || options.pinned_memory() ||
      options.has_memory_format()) {
    throw Error(absl::InvalidArgumentError(
        "empty_for makes a row-major tensor with a dtype and a device; set other options afterwards"));
  }
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  if (options.device().is_cpu()) return empty_for(agent, to, sizes, dtype);
  (void)value_or_throw(agent->services().find_worker(to));
  (void)value_or_throw(checked_extent(sizes, static_cast<int64_t>(c10::elementSize(dtype))));
  try {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).device(options.device()));
  } catch (...) {
    throw Error(status_from_exception(std::current_exception()));
  }
}

at::Tensor empty_for(const Destination& to, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return empty_for(Agent::current(), to, sizes, options);
}

}  // namespace gradwire::rpc
