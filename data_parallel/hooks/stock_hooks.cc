#include "gradwire/data_parallel/hooks/stock_hooks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/round.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/hooks/bucket_reductions.h"

namespace gradwire::data_parallel {
namespace {

// Casts the bucket to another dtype around another hook.
class CastHook : public CommHook {
 public:
  CastHook(std::shared_ptr<CommHook> hook, at::ScalarType dtype) : hook_(std::move(hook)), dtype_(dtype) {
    if (hook_ == nullptr) {
      throw Error(absl::InvalidArgumentError(
          "communication hook: got no hook to wrap, expected the hook that reduces the gradients"));
    }
  }

  HookStep run(GradBucket& bucket) override {
    const at::Tensor original = bucket.buffer();
    bucket.set_buffer(original.to(dtype_));
    return hook_->run(bucket).then([original](const at::Tensor& result) {
      original.copy_(result);
      return original;
    });
  }
  void pass_ended() override { hook_->pass_ended(); }
  void save(torch::serialize::OutputArchive& archive) const override { hook_->save(archive); }
  void load(torch::serialize::InputArchive& archive) override { hook_->load(archive); }

 private:
  const std::shared_ptr<CommHook> hook_;
  const at::ScalarType dtype_;
};

}  // namespace

std::shared_ptr<CommHook> allreduce_hook(std::shared_ptr<collectives::ProcessGroup> group) {
  if (group == nullptr) {
    throw Error(absl::InvalidArgumentError(
        "communication hook: got no group, expected the group of the replica; for the world give world()"));
  }
  return make_comm_hook([group](GradBucket& bucket) { return mean_of(*group, bucket.buffer()); });
}

std::shared_ptr<CommHook> noop_hook() {
  return make_comm_hook([](GradBucket& bucket) { return HookStep(bucket.buffer()); });
}

std::shared_ptr<CommHook> fp16_compress_hook(std::shared_ptr<collectives::ProcessGroup> group) {
  return fp16_compress_wrapper(allreduce_hook(std::move(group)));
}
std::shared_ptr<CommHook> bf16_compress_hook(std::shared_ptr<collectives::ProcessGroup> group) {
  return bf16_compress_wrapper(allreduce_hook(std::move(group)));
}

std::shared_ptr<CommHook> fp16_compress_wrapper(std::shared_ptr<CommHook> hook) {
  return std::make_shared<CastHook>(std::move(hook), at::kHalf);
}
std::shared_ptr<CommHook> bf16_compress_wrapper(std::shared_ptr<CommHook> hook) {
  return std::make_shared<CastHook>(std::move(hook), at::kBFloat16);
}

// The hooks that send 8-bit integers.

namespace {

constexpr double kLevels = 255;

void require_group(const std::shared_ptr<collectives::ProcessGroup>& group) {
  if (group != nullptr) return;
  throw Error(absl::InvalidArgumentError(
      "communication hook: got no group, expected the group of the replica; for the world give world()"));
}

// The scale and the zero point of each row: two rows of float32. The range of a row includes 0, so that 0 has
// an exact code. They follow torch.ao.quantization.MinMaxObserver with unsigned 8-bit codes.
at::Tensor parameters_of(const at::Tensor& rows) {
  const at::Tensor low = rows.amin(1).clamp_max(0).to(at::kFloat);
  const at::Tensor high = rows.amax(1).clamp_min(0).to(at::kFloat);
  const at::Tensor scale = ((high - low) / kLevels).clamp_min(std::numeric_limits<float>::epsilon());
  const at::Tensor zero = at::round(low / scale).neg().clamp(0, kLevels);
  return at::stack({scale, zero});
}

at::Tensor coded(const at::Tensor& rows, const at::Tensor& parameters) {
  return (at::round(rows / parameters[0].unsqueeze(1)) + parameters[1].unsqueeze(1))
      .clamp(0, kLevels)
      .to(at::kByte);
}

at::Tensor decoded(const at::Tensor& codes, const at::Tensor& parameters) {
  return (codes.to(at::kFloat) - parameters[1].unsqueeze(1)) * parameters[0].unsqueeze(1);
}

// 1. Divide the bucket into rows.
// 2. Gather each rank's scales, zero points and codes. A rank knows its own parameters without the others, so
//    both gathers start at once.
// 3. Decode and add the codes of all ranks in their order, and divide the sum.
HookStep quantized_average(collectives::ProcessGroup& group, const at::Tensor& flat, int64_t row_size) {
  const int64_t elements = flat.numel();
  // A parameter may have no elements. Then there are no rows either, on any rank.
  if (elements == 0) return HookStep(flat);
  const at::Tensor rows =
      at::constant_pad_nd(flat, {0, (row_size - elements % row_size) % row_size}).view({-1, row_size});
  const at::Tensor parameters = parameters_of(rows);
  const at::Tensor codes = coded(rows, parameters);
  const int64_t ranks = group.size();
  const at::Tensor all_parameters = at::empty({ranks, 2, rows.size(0)}, parameters.options());
  const at::Tensor all_codes = at::empty({ranks, rows.size(0), row_size}, codes.options());
  return HookStep::locally_after({group.all_gather_into_tensor_async(all_parameters, parameters),
                                  group.all_gather_into_tensor_async(all_codes, codes)},
                                 [parameters, codes, all_parameters, all_codes, elements, ranks] {
                                   at::Tensor sum = at::zeros_like(codes, all_parameters.options());
                                   for (int64_t rank = 0; rank < ranks; ++rank)
                                     sum += decoded(all_codes[rank], all_parameters[rank]);
                                   return HookStep((sum / ranks).view({-1}).narrow(0, 0, elements));
                                 });
}

}  // namespace

std::shared_ptr<CommHook> quantization_pertensor_hook(std::shared_ptr<collectives::ProcessGroup> group) {
  require_group(group);
  return make_comm_hook([group](GradBucket& bucket) {
    return quantized_average(*group, bucket.buffer(), bucket.buffer().numel());
  });
}

std::shared_ptr<CommHook> quantization_perchannel_hook(std::shared_ptr<collectives::ProcessGroup> group,
                                                       int64_t channel_size) {
  if (channel_size <= 0) {
    throw Error(
        absl::InvalidArgumentError(absl::StrCat("channel_size must be positive, got ", channel_size)));
  }
  require_group(group);
  return make_comm_hook([group, channel_size](GradBucket& bucket) {
    return quantized_average(*group, bucket.buffer(), channel_size);
  });
}

}  // namespace gradwire::data_parallel
