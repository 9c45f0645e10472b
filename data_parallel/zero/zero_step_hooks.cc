#include "gradwire/data_parallel/zero/zero_step_hooks.h"

#include <utility>
#include <vector>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::data_parallel {
namespace {

// Steps of a bucket:
//   1. The wrapped hook reduces it.
//   2. The averages become gradients, and this rank steps its share of the parameters. This starts no
//      collective, so a rank may do it when it likes.
//   3. The broadcasts of the new values start, at the same point on every rank.
//   4. The new values are unpacked.
class ZeroStepHook : public CommHook {
 public:
  ZeroStepHook(std::shared_ptr<CommHook> hook, ShardedOptimizer& optimizer, bool interleaved)
      : hook_(std::move(hook)), optimizer_(optimizer), interleaved_(interleaved) {}

  HookStep run(GradBucket& bucket) override {
    HookStep reduced = hook_->run(bucket);
    if (interleaved_) {
      return std::move(reduced)
          .then([this, &bucket](const at::Tensor& result) { return step(bucket, result); })
          .then_after([this, &bucket](const at::Tensor& result) { return broadcast(bucket, result); });
    }
    return std::move(reduced).then_after(
        [this, &bucket](const at::Tensor& result) { return broadcast(bucket, step(bucket, result)); });
  }

  // Steps the parameters that were in no bucket. The replica has set their gradients.
  void pass_ended() override {
    std::vector<at::Tensor> rest;
    for (const torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
      for (const at::Tensor& each : group.params()) {
        if (!stepped_.contains(each.unsafeGetTensorImpl())) rest.push_back(each);
      }
    }
    stepped_.clear();
    if (!rest.empty()) {
      optimizer_.step_some(rest);
      for (CoalescedBroadcast& each : optimizer_.broadcast_some(rest)) each.finish();
    }
    hook_->pass_ended();
  }

  void save(torch::serialize::OutputArchive& archive) const override { hook_->save(archive); }
  void load(torch::serialize::InputArchive& archive) override { hook_->load(archive); }

 private:
  at::Tensor step(GradBucket& bucket, const at::Tensor& result) {
    at::Tensor averages = bucket.complete(
        result, [this](const at::Tensor& parameter) { return optimizer_.owner_of(parameter).has_value(); });
    optimizer_.step_some(bucket.parameters());
    for (const at::Tensor& each : bucket.parameters()) stepped_.insert(each.unsafeGetTensorImpl());
    return averages;
  }

  HookStep broadcast(GradBucket& bucket, const at::Tensor& averages) {
    auto broadcasts =
        std::make_shared<std::vector<CoalescedBroadcast>>(optimizer_.broadcast_some(bucket.parameters()));
    std::vector<std::shared_ptr<collectives::Work>> works;
    for (const CoalescedBroadcast& each : *broadcasts) {
      const std::vector<std::shared_ptr<collectives::Work>> more = each.works();
      works.insert(works.end(), more.begin(), more.end());
    }
    return HookStep::locally_after(std::move(works), [broadcasts, averages] {
      for (CoalescedBroadcast& each : *broadcasts) each.finish();
      return HookStep(averages);
    });
  }

  const std::shared_ptr<CommHook> hook_;
  ShardedOptimizer& optimizer_;
  const bool interleaved_;
  // The parameters that were stepped in the pass under way.
  HashSet<const c10::TensorImpl*> stepped_;
};

}  // namespace

std::shared_ptr<CommHook> hook_with_zero_step(std::shared_ptr<CommHook> hook, ShardedOptimizer& optimizer) {
  return std::make_shared<ZeroStepHook>(std::move(hook), optimizer, /*interleaved=*/false);
}

std::shared_ptr<CommHook> hook_with_zero_step_interleaved(std::shared_ptr<CommHook> hook,
                                                          ShardedOptimizer& optimizer) {
  return std::make_shared<ZeroStepHook>(std::move(hook), optimizer, /*interleaved=*/true);
}

}  // namespace gradwire::data_parallel
