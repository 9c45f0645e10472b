// The collectives of libtorch's tensors: each is checked, described, and run in its turn.
#include <utility>

#include "gradwire/collectives/group/process_group_impl.h"

namespace gradwire::collectives {
namespace {

OperationRecord with_root(OperationRecord record, int root) {
  record.peer = root;
  return record;
}

OperationRecord with_op(OperationRecord record, const Reduction& op) {
  record.reduction = static_cast<int8_t>(op.op);
  record.multiplies = op.multiplies;
  return record;
}

// For operations whose ranks' sizes may differ.
OperationRecord dtype_alone(Operation operation, const at::Tensor& tensor) {
  OperationRecord record;
  record.operation = operation;
  record.dtype = c10::toString(tensor.scalar_type());
  return record;
}

}  // namespace

ProcessGroup::WorkPtr ProcessGroupImpl::begin_broadcast(Mode mode, at::Tensor tensor, int src) {
  constexpr Operation kThis = Operation::kBroadcast;
  const int root = check_rank(kThis, src, "src");
  check(kThis, root == rank() ? checks_.readable(tensor, "tensor") : checks_.writable(tensor, "tensor"));
  const OperationRecord record = with_root(record_of(kThis, tensor), src);
  const c10::Device device = tensor.device();
  return runner_->perform(mode, record, device, [tensor = std::move(tensor), root](RunContext& run) mutable {
    return operations::broadcast(run, std::move(tensor), root);
  });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_reduce(Mode mode, at::Tensor tensor, int dst,
                                                     const Reduction& op) {
  constexpr Operation kThis = Operation::kReduce;
  const int root = check_rank(kThis, dst, "dst");
  check(kThis, root == rank() ? checks_.writable(tensor, "tensor") : checks_.readable(tensor, "tensor"));
  check(kThis, checks_.reduction(op, tensor));
  const OperationRecord record = with_op(with_root(record_of(kThis, tensor), dst), op);
  const c10::Device device = tensor.device();
  return runner_->perform(mode, record, device,
                          [tensor = std::move(tensor), root, op](RunContext& run) mutable {
                            return operations::reduce(run, std::move(tensor), root, op);
                          });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_reduce(Mode mode, at::Tensor tensor, const Reduction& op) {
  constexpr Operation kThis = Operation::kAllReduce;
  check(kThis, checks_.writable(tensor, "tensor"));
  check(kThis, checks_.reduction(op, tensor));
  const OperationRecord record = with_op(record_of(kThis, tensor), op);
  const c10::Device device = tensor.device();
  return runner_->perform(mode, record, device, [tensor = std::move(tensor), op](RunContext& run) mutable {
    return operations::all_reduce(run, std::move(tensor), op);
  });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_gather(Mode mode, at::Tensor tensor, Tensors list, int dst) {
  constexpr Operation kThis = Operation::kGather;
  const int root = check_rank(kThis, dst, "dst");
  check(kThis, checks_.readable(tensor, "tensor"));
  check(kThis, checks_.root_list(list, tensor, root == rank(), /*written=*/true, "list"));
  const OperationRecord record = with_root(record_of(kThis, tensor), dst);
  const c10::Device device = tensor.device();
  return runner_->perform(
      mode, record, device,
      [tensor = std::move(tensor), list = std::move(list), root](RunContext& run) mutable {
        return operations::gather(run, std::move(tensor), std::move(list), root);
      });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_gather(Mode mode, Tensors list, at::Tensor tensor) {
  constexpr Operation kThis = Operation::kAllGather;
  check(kThis, checks_.readable(tensor, "tensor"));
  check(kThis, checks_.outputs(list, tensor, "list"));
  const OperationRecord record = record_of(kThis, tensor);
  const c10::Device device = tensor.device();
  return runner_->perform(mode, record, device,
                          [tensor = std::move(tensor), list = std::move(list)](RunContext& run) mutable {
                            return operations::all_gather(run, std::move(tensor), std::move(list));
                          });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_scatter(Mode mode, at::Tensor tensor, Tensors list, int src) {
  constexpr Operation kThis = Operation::kScatter;
  const int root = check_rank(kThis, src, "src");
  check(kThis, checks_.writable(tensor, "tensor"));
  check(kThis, checks_.root_list(list, tensor, root == rank(), /*written=*/false, "list"));
  const OperationRecord record = with_root(record_of(kThis, tensor), src);
  const c10::Device device = tensor.device();
  return runner_->perform(
      mode, record, device,
      [tensor = std::move(tensor), list = std::move(list), root](RunContext& run) mutable {
        return operations::scatter(run, std::move(tensor), std::move(list), root);
      });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_reduce_scatter(Mode mode, at::Tensor output, Tensors list,
                                                             const Reduction& op) {
  constexpr Operation kThis = Operation::kReduceScatter;
  check(kThis, checks_.writable(output, "output"));
  check(kThis, checks_.reduction(op, output));
  check(kThis, checks_.inputs(list, output, "list"));
  const OperationRecord record = with_op(record_of(kThis, output), op);
  const c10::Device device = output.device();
  return runner_->perform(mode, record, device,
                          [output = std::move(output), list = std::move(list), op](RunContext& run) mutable {
                            return operations::reduce_scatter(run, std::move(output), std::move(list), op);
                          });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_all_to_all(Mode mode, Tensors outputs, Tensors inputs) {
  constexpr Operation kThis = Operation::kAllToAll;
  check(kThis, checks_.all_to_all(outputs, inputs));
  const OperationRecord record = dtype_alone(kThis, inputs.front());
  const c10::Device device = inputs.front().device();
  return runner_->perform(
      mode, record, device,
      [outputs = std::move(outputs), inputs = std::move(inputs)](RunContext& run) mutable {
        return operations::all_to_all(run, std::move(outputs), std::move(inputs));
      });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_barrier(Mode mode, const std::vector<int>& device_ids) {
  OperationRecord record;
  record.operation = Operation::kBarrier;
  return runner_->perform(mode, record, own_device_, [device_ids](RunContext& run) {
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
  const OperationRecord record = record_of(kThis, input);
  const c10::Device device = input.device();
  return runner_->perform(
      mode, record, device, [output = std::move(output), input = std::move(input)](RunContext& run) mutable {
        return operations::all_gather_into_tensor(run, std::move(output), std::move(input));
      });
}

ProcessGroup::WorkPtr ProcessGroupImpl::begin_reduce_scatter_tensor(Mode mode, at::Tensor output,
                                                                    at::Tensor input, const Reduction& op) {
  constexpr Operation kThis = Operation::kReduceScatterTensor;
  check(kThis, checks_.writable(output, "output"));
  check(kThis, checks_.readable(input, "input"));
  check(kThis, checks_.reduction(op, output));
  check(kThis, checks_.whole_and_part(input, "input", output, "output"));
  const OperationRecord record = with_op(record_of(kThis, output), op);
  const c10::Device device = output.device();
  return runner_->perform(
      mode, record, device,
      [output = std::move(output), input = std::move(input), op](RunContext& run) mutable {
        return operations::reduce_scatter_tensor(run, std::move(output), std::move(input), op);
      });
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
  const OperationRecord record = dtype_alone(kThis, input);
  const c10::Device device = input.device();
  return runner_->perform(mode, record, device,
                          [output = std::move(output), input = std::move(input), out = *std::move(out),
                           in = *std::move(in)](RunContext& run) mutable {
                            return operations::all_to_all_single(run, std::move(output), std::move(input),
                                                                 out, in);
                          });
}

}  // namespace gradwire::collectives
