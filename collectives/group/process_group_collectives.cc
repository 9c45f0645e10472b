// The collectives of tensors. Each checks its arguments, makes its OperationRecord, and runs in its turn.
#include <type_traits>
#include <utility>

#include "gradwire/collectives/coalesce/coalesced.h"
#include "gradwire/collectives/group/process_group_impl.h"
#include "gradwire/collectives/sparse/sparse_all_reduce.h"

namespace gradwire::collectives {
namespace {

OperationRecord with_root(OperationRecord record, int root) {
  record.peer = root;
  return record;
}

// A record without sizes, for operations in which the sizes may differ between ranks.
OperationRecord record_without_sizes(Operation operation, const at::Tensor& tensor) {
  OperationRecord record;
  record.operation = operation;
  record.dtype = c10::toString(tensor.scalar_type());
  record.bytes = data_bytes(tensor);
  return record;
}

// Runs `kOperation`, for example a function of the namespace `operations`, with these arguments in its turn.
template <auto kOperation, class... Arguments>
ProcessGroup::WorkPtr perform(OperationRunner& runner, OperationRunner::Mode mode,
                              const OperationRecord& record, c10::Device device, Arguments&&... arguments) {
  return runner.perform(mode, record, device,
                        [... held = std::decay_t<Arguments>(std::forward<Arguments>(arguments))](
                            RunContext& run) mutable { return kOperation(run, std::move(held)...); });
}

}  // namespace

ProcessGroup::WorkPtr ProcessGroupImpl::begin_broadcast(Mode mode, at::Tensor tensor, int src) {
  constexpr Operation kThis = Operation::kBroadcast;
  const int root = check_rank(kThis, src, "src");
  check(kThis, root == rank() ? checks_.readable(tensor, "tensor") : checks_.writable(tensor, "tensor"));
  return perform<&operations::broadcast>(*runner_, mode, with_root(record_of(kThis, tensor), src),
                                         tensor.device(), std::move(tensor), root);
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_reduce(Mode mode, at::Tensor tensor, int dst,
                                                     const Reduction& op) {
  constexpr Operation kThis = Operation::kReduce;
  const int root = check_rank(kThis, dst, "dst");
  check(kThis, root == rank() ? checks_.writable(tensor, "tensor") : checks_.readable(tensor, "tensor"));
  check(kThis, checks_.reduction(op, tensor));
  return perform<&operations::reduce>(*runner_, mode, with_op(with_root(record_of(kThis, tensor), dst), op),
                                      tensor.device(), std::move(tensor), root, op);
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_reduce(Mode mode, at::Tensor tensor, const Reduction& op) {
  constexpr Operation kThis = Operation::kAllReduce;
  if (tensor.defined() && tensor.is_sparse()) [[unlikely]] {
    const OperationRecord record = with_op(record_of(Operation::kAllReduceSparse, tensor), op);
    check(record.operation, checks_.sparse_reduction(op, tensor, "tensor"));
    return perform<&all_reduce_sparse>(*runner_, mode, record, tensor.device(), std::move(tensor), op);
  }
  check(kThis, checks_.writable(tensor, "tensor"));
  check(kThis, checks_.reduction(op, tensor));
  return perform<&operations::all_reduce>(*runner_, mode, with_op(record_of(kThis, tensor), op),
                                          tensor.device(), std::move(tensor), op);
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_coalesced(Mode mode, std::vector<CoalescedCall> calls) {
  const OperationRecord record = record_of_calls(calls);
  check(record.operation, check_calls(checks_, calls));
  const c10::Device device = calls.front().outputs.front().device();
  return perform<&run_calls>(*runner_, mode, record, device, std::move(calls));
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_gather(Mode mode, at::Tensor tensor, Tensors list, int dst) {
  constexpr Operation kThis = Operation::kGather;
  const int root = check_rank(kThis, dst, "dst");
  check(kThis, checks_.readable(tensor, "tensor"));
  check(kThis, checks_.root_list(list, tensor, root == rank(), /*written=*/true, "list"));
  return perform<&operations::gather>(*runner_, mode, with_root(record_of(kThis, tensor), dst),
                                      tensor.device(), std::move(tensor), std::move(list), root);
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_gather(Mode mode, Tensors list, at::Tensor tensor) {
  constexpr Operation kThis = Operation::kAllGather;
  check(kThis, checks_.readable(tensor, "tensor"));
  if (has_other_shape(list, tensor)) [[unlikely]] {
    check(kThis, checks_.outputs_of_ranks(list, tensor, "list"));
    return perform<&operations::all_gather_uneven>(*runner_, mode, record_of_list(kThis, list),
                                                   tensor.device(), std::move(tensor), std::move(list));
  }
  check(kThis, checks_.outputs(list, tensor, "list"));
  return perform<&operations::all_gather>(*runner_, mode, record_of(kThis, tensor), tensor.device(),
                                          std::move(tensor), std::move(list));
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_scatter(Mode mode, at::Tensor tensor, Tensors list, int src) {
  constexpr Operation kThis = Operation::kScatter;
  const int root = check_rank(kThis, src, "src");
  check(kThis, checks_.writable(tensor, "tensor"));
  check(kThis, checks_.root_list(list, tensor, root == rank(), /*written=*/false, "list"));
  return perform<&operations::scatter>(*runner_, mode, with_root(record_of(kThis, tensor), src),
                                       tensor.device(), std::move(tensor), std::move(list), root);
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_reduce_scatter(Mode mode, at::Tensor output, Tensors list,
                                                             const Reduction& op) {
  constexpr Operation kThis = Operation::kReduceScatter;
  check(kThis, checks_.writable(output, "output"));
  check(kThis, checks_.reduction(op, output));
  check(kThis, checks_.inputs(list, output, "list"));
  return perform<&operations::reduce_scatter>(*runner_, mode, with_op(record_of(kThis, output), op),
                                              output.device(), std::move(output), std::move(list), op);
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_to_all(Mode mode, Tensors outputs, Tensors inputs) {
  constexpr Operation kThis = Operation::kAllToAll;
  check(kThis, checks_.all_to_all(outputs, inputs));
  return perform<&operations::all_to_all>(*runner_, mode, record_without_sizes(kThis, inputs.front()),
                                          inputs.front().device(), std::move(outputs), std::move(inputs));
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_barrier(Mode mode, const std::vector<int>& device_ids) {
  OperationRecord record;
  record.operation = Operation::kBarrier;
  const c10::Device device = device_ids.empty() ? own_device_ : barrier_device_;
  return runner_->perform(mode, record, device, [device_ids](RunContext& run) {
    absl::Status status = run.backend.barrier_on(device_ids, run.deadline);
    run.enqueued = run.backend.take_enqueued();
    return status;
  });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_gather_into_tensor(Mode mode, at::Tensor output,
                                                                     at::Tensor input) {
  constexpr Operation kThis = Operation::kAllGatherIntoTensor;
  check(kThis, checks_.readable(input, "input"));
  check(kThis, checks_.writable(output, "output"));
  check(kThis, checks_.whole_and_part(output, "output", input, "input"));
  return perform<&operations::all_gather_into_tensor>(*runner_, mode, record_of(kThis, input), input.device(),
                                                      std::move(output), std::move(input));
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_reduce_scatter_tensor(Mode mode, at::Tensor output,
                                                                    at::Tensor input, const Reduction& op) {
  constexpr Operation kThis = Operation::kReduceScatterTensor;
  check(kThis, checks_.writable(output, "output"));
  check(kThis, checks_.readable(input, "input"));
  check(kThis, checks_.reduction(op, output));
  check(kThis, checks_.whole_and_part(input, "input", output, "output"));
  return perform<&operations::reduce_scatter_tensor>(*runner_, mode, with_op(record_of(kThis, output), op),
                                                     output.device(), std::move(output), std::move(input),
                                                     op);
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_to_all_single(Mode mode, at::Tensor output,
                                                                at::Tensor input,
                                                                const std::vector<int64_t>& output_splits,
                                                                const std::vector<int64_t>& input_splits) {
  constexpr Operation kThis = Operation::kAllToAllSingle;
  check(kThis, checks_.readable(input, "input"));
  check(kThis, checks_.writable(output, "output"));
  absl::StatusOr<std::vector<int64_t>> out = checks_.splits(output, output_splits, "output");
  check(kThis, out.status());
  absl::StatusOr<std::vector<int64_t>> in = checks_.splits(input, input_splits, "input");
  check(kThis, in.status());
  check(kThis, checks_.rows_to_self(output, (*out)[rank()], input, (*in)[rank()]));
  return perform<&operations::all_to_all_single>(*runner_, mode, record_without_sizes(kThis, input),
                                                 input.device(), std::move(output), std::move(input),
                                                 *std::move(out), *std::move(in));
}

}  // namespace gradwire::collectives
