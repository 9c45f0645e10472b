// The collectives with one tensor for each GPU of this rank.
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/group/process_group_impl.h"

namespace gradwire::collectives {
namespace {

// Takes the enqueued part of the operation from the backend. Returns `status`.
absl::Status finish(RunContext& run, absl::Status status) {
  run.enqueued = run.backend.take_enqueued();
  return status;
}

// Whether the backend has multi-device collectives. Checked before the operation waits for its turn.
absl::Status check_multi_device(const OperationRunner& runner, Backend kind) {
  const std::shared_ptr<GroupBackend> backend = runner.backend();
  if (backend == nullptr) return runner.closed_error();
  if (backend->multi_device() != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the backend ", to_string(kind), " serves one device for each rank; this operation needs nccl"));
}

}  // namespace

ProcessGroup::WorkPtr ProcessGroupImpl::broadcast_multigpu_async(Tensors tensors, int src) {
  constexpr Operation kThis = Operation::kBroadcastMultigpu;
  const int root = check_rank(kThis, src, "src");
  check(kThis, check_multi_device(*runner_, kind_));
  check(kThis, checks_.one_per_device(tensors));
  OperationRecord record = record_of(kThis, tensors[0]);
  record.peer = src;
  const c10::Device device = tensors[0].device();
  return runner_->perform(
      Mode::kLater, record, device, [tensors = std::move(tensors), root](RunContext& run) {
        return finish(run, run.backend.multi_device()->broadcast(tensors, root, run.deadline));
      });
}

ProcessGroup::WorkPtr ProcessGroupImpl::all_reduce_multigpu_async(Tensors tensors, const Reduction& op) {
  constexpr Operation kThis = Operation::kAllReduceMultigpu;
  check(kThis, check_multi_device(*runner_, kind_));
  check(kThis, checks_.one_per_device(tensors));
  check(kThis, checks_.reduction(op, tensors[0]));
  const OperationRecord record = with_op(record_of(kThis, tensors[0]), op);
  const c10::Device device = tensors[0].device();
  return runner_->perform(Mode::kLater, record, device, [tensors = std::move(tensors), op](RunContext& run) {
    return finish(run, run.backend.multi_device()->all_reduce(tensors, op, run.deadline));
  });
}

ProcessGroup::WorkPtr ProcessGroupImpl::reduce_multigpu_async(Tensors tensors, int dst, const Reduction& op) {
  constexpr Operation kThis = Operation::kReduceMultigpu;
  const int root = check_rank(kThis, dst, "dst");
  check(kThis, check_multi_device(*runner_, kind_));
  check(kThis, checks_.one_per_device(tensors));
  check(kThis, checks_.reduction(op, tensors[0]));
  OperationRecord record = with_op(record_of(kThis, tensors[0]), op);
  record.peer = dst;
  const c10::Device device = tensors[0].device();
  return runner_->perform(
      Mode::kLater, record, device, [tensors = std::move(tensors), root, op](RunContext& run) {
        return finish(run, run.backend.multi_device()->reduce(tensors, root, op, run.deadline));
      });
}

ProcessGroup::WorkPtr ProcessGroupImpl::all_gather_multigpu_async(std::vector<Tensors> lists,
                                                                  Tensors tensors) {
  constexpr Operation kThis = Operation::kAllGatherMultigpu;
  check(kThis, check_multi_device(*runner_, kind_));
  check(kThis, checks_.one_per_device(tensors));
  check(kThis, checks_.lists_per_device(lists, tensors));
  const OperationRecord record = record_of(kThis, tensors[0]);
  const c10::Device device = tensors[0].device();
  return runner_->perform(Mode::kLater, record, device,
                          [lists = std::move(lists), tensors = std::move(tensors)](RunContext& run) {
                            return finish(
                                run, run.backend.multi_device()->all_gather(lists, tensors, run.deadline));
                          });
}

}  // namespace gradwire::collectives
