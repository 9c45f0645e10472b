#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/collectives/work.h"
#include "gradwire/data_parallel/hooks/grad_bucket.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace gradwire::data_parallel {

// One step of a hook's reduction of a bucket: the result, or operations under way with a function that
// continues after them. The replica drives the steps of all buckets: it waits for the operations of a step,
// and then calls its function, which returns the next step.
//
// A function that starts collectives must run at the same point on every rank. So the functions of after()
// run when the backward pass has started its last bucket: first the second steps of all buckets in the order
// of the buckets, then the third ones, and so on. A function of locally_after() starts no collective; it runs
// as soon as its operations have ended, while the backward pass still runs if possible. On an accelerator it
// runs when the backward pass has started its last bucket, because it makes the current stream wait.
class HookStep {
 public:
  // The function that continues.
  using Next = absl::AnyInvocable<HookStep()>;

  // The reduction has ended. `result` has the number of elements of the bucket's buffer, on its device, in
  // any dtype; its values become the gradients. It may be the buffer.
  HookStep(at::Tensor result) : result_(std::move(result)) {}
  // The reduction ends with the future's value, as above.
  HookStep(Future<at::Tensor> future);
  // Calls `next` after these operations. It may start collectives.
  static HookStep after(std::vector<std::shared_ptr<collectives::Work>> works, Next next);
  // Calls `next` after these operations. It must not start a collective.
  static HookStep locally_after(std::vector<std::shared_ptr<collectives::Work>> works, Next next);

  // The same reduction, whose result `change` replaces. `change` must not start a collective.
  HookStep then(absl::AnyInvocable<at::Tensor(at::Tensor)> change) &&;
  // The same reduction, and after it a step that gets its result. The step may start a collective: it runs as
  // a function of after().
  HookStep then_after(absl::AnyInvocable<HookStep(at::Tensor)> next) &&;

  // Whether the reduction has ended.
  bool ended() const { return next_ == nullptr; }
  // The result. REQUIRES: ended()
  const at::Tensor& result() const { return result_; }
  // Whether its function starts no collective.
  bool is_local() const { return local_; }
  // Whether advance() would neither wait nor start a collective. REQUIRES: !ended()
  bool can_advance_locally() const;
  // Waits for the operations and runs the function. Throws the operations' Error, and the function's
  // exceptions. REQUIRES: !ended()
  HookStep advance() &&;

 private:
  HookStep(std::vector<std::shared_ptr<collectives::Work>> works, Next next, bool local)
      : works_(std::move(works)), next_(std::move(next)), local_(local) {}

  at::Tensor result_;
  Future<at::Tensor> future_;
  std::vector<std::shared_ptr<collectives::Work>> works_;
  Next next_;
  bool local_ = false;
};

// Replaces the reduction of gradients in a DistributedDataParallel: it is called for each bucket whose
// gradients are complete. It decides how the ranks exchange the bucket, and which values the gradients get.
// It follows the hooks of torch.distributed.algorithms.ddp_comm_hooks.
//
// run() is called on a thread of the backward pass, in the order of the buckets, never for two buckets at the
// same time. All ranks must use the same hook with the same options. One hook object serves one replica.
class CommHook {
 public:
  virtual ~CommHook() = default;
  // Starts the reduction of the bucket, in which the gradients of this rank are. The bucket stays valid until
  // the reduction has ended. An exception ends the backward pass.
  virtual HookStep run(GradBucket& bucket) = 0;
  // Called when all gradients of a pass have their values, before backward() returns.
  virtual void pass_ended() {}
  // Writes the state that a checkpoint needs; hooks without a state write nothing.
  virtual void save(torch::serialize::OutputArchive& archive) const;
  // Reads what save() has written. Throws Error with InvalidArgument if the archive does not have it.
  virtual void load(torch::serialize::InputArchive& archive);
};

// Makes a hook of a function that takes a GradBucket& and returns a tensor, a Future of a tensor or a
// HookStep.
//   model.register_comm_hook(make_comm_hook([group](GradBucket& bucket) -> HookStep {
//     auto work = group->all_reduce_async(bucket.buffer(), ReduceOp::kAvg);
//     return HookStep::locally_after({work}, [&bucket] { return HookStep(bucket.buffer()); });
//   }));
template <class F>
std::shared_ptr<CommHook> make_comm_hook(F function) {
  static_assert(std::is_invocable_r_v<HookStep, F&, GradBucket&>,
                "a hook takes a GradBucket& and returns a HookStep, a Future of a tensor or a tensor");
  class FunctionHook : public CommHook {
   public:
    explicit FunctionHook(F function) : function_(std::move(function)) {}
    HookStep run(GradBucket& bucket) override { return function_(bucket); }

   private:
    F function_;
  };
  return std::make_shared<FunctionHook>(std::move(function));
}

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::CommHook;
using data_parallel::HookStep;
using data_parallel::make_comm_hook;
}  // namespace gradwire::collectives
