#include "gradwire/data_parallel/hooks/stock_hooks.h"

#include <ATen/ops/div.h>

#include <utility>

#include "absl/status/status.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/hooks/mean.h"

namespace gradwire::collectives {
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

std::shared_ptr<CommHook> allreduce_hook(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) {
    throw Error(absl::InvalidArgumentError(
        "communication hook: got no group, expected the group of the replica; for the world give world()"));
  }
  return make_comm_hook([group](GradBucket& bucket) { return mean_of(*group, bucket.buffer()); });
}

std::shared_ptr<CommHook> noop_hook() {
  return make_comm_hook([](GradBucket& bucket) { return HookStep(bucket.buffer()); });
}

std::shared_ptr<CommHook> fp16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return fp16_compress_wrapper(allreduce_hook(std::move(group)));
}
std::shared_ptr<CommHook> bf16_compress_hook(std::shared_ptr<ProcessGroup> group) {
  return bf16_compress_wrapper(allreduce_hook(std::move(group)));
}

std::shared_ptr<CommHook> fp16_compress_wrapper(std::shared_ptr<CommHook> hook) {
  return std::make_shared<CastHook>(std::move(hook), at::kHalf);
}
std::shared_ptr<CommHook> bf16_compress_wrapper(std::shared_ptr<CommHook> hook) {
  return std::make_shared<CastHook>(std::move(hook), at::kBFloat16);
}

}  // namespace gradwire::collectives
