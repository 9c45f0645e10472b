#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/coalesce/coalesced.h"
#include "gradwire/collectives/group/process_group_impl.h"
#include "gradwire/collectives/objects/object_bytes.h"
#include "gradwire/collectives/sparse/sparse_all_reduce.h"

// The collectives of ProcessGroupImpl: of tensors, of tensors on several GPUs, and of objects. Each checks
// its arguments, makes its OperationRecord, and runs in its turn.
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

// The collectives with one tensor for each GPU of this rank.

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

// The collectives of objects, which are encoded as bytes. An exchange has two steps: first the sizes, then
// the bytes. Every rank checks the sizes against the limit before it allocates memory for the bytes.

namespace {

using ExchangeKind = ObjectExchange::Kind;
using Tensors = std::vector<at::Tensor>;

// Sent instead of a size: the object could not be encoded.
constexpr int64_t kNoObject = -1;

Operation operation_of(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kBroadcast:
      return Operation::kBroadcastObject;
    case ExchangeKind::kAllGather:
      return Operation::kAllGatherObject;
    case ExchangeKind::kGather:
      return Operation::kGatherObject;
    case ExchangeKind::kScatter:
      return Operation::kScatterObject;
  }
  return Operation::kBroadcastObject;
}

int64_t size_of(const at::Tensor& bytes) { return bytes.defined() ? bytes.numel() : kNoObject; }

// This rank's part of one exchange.
class Exchange {
 public:
  Exchange(RunContext& run, ObjectExchange& exchange, int root, c10::Device device)
      : run_(run), exchange_(exchange), root_(root), device_(device) {}

  absl::Status run() {
    const c10::NoGradGuard no_grad;
    GRADWIRE_RETURN_IF_ERROR(exchange_sizes());
    GRADWIRE_RETURN_IF_ERROR(check_sizes());
    return exchange_.kind == ExchangeKind::kBroadcast ? broadcast() : exchange_bytes();
  }

 private:
  bool at_root() const { return run_.rank == root_; }
  bool from_root() const {
    return exchange_.kind == ExchangeKind::kBroadcast || exchange_.kind == ExchangeKind::kScatter;
  }

  at::Tensor make(int64_t count, at::ScalarType dtype) const {
    return at::empty({count}, at::TensorOptions().dtype(dtype).device(device_));
  }

  absl::Status exchange_sizes() {
    Tensors all;
    if (from_root()) {
      at::Tensor sizes = at::empty({exchange_.kind == ExchangeKind::kScatter ? run_.size : 1}, at::kLong);
      if (at_root()) {
        for (int64_t i = 0; i < sizes.numel(); ++i) {
          sizes.mutable_data_ptr<int64_t>()[i] = size_of(exchange_.sent[static_cast<std::size_t>(i)]);
        }
      }
      all.push_back(sizes.to(device_));
      GRADWIRE_RETURN_IF_ERROR(operations::broadcast(run_, all[0], root_));
    } else {
      at::Tensor own = at::empty({1}, at::kLong);
      own.mutable_data_ptr<int64_t>()[0] = size_of(exchange_.sent[0]);
      for (int rank = 0; rank < run_.size; ++rank) all.push_back(make(1, at::kLong));
      GRADWIRE_RETURN_IF_ERROR(operations::all_gather(run_, own.to(device_), all));
    }
    run_.order_behind_last_step();
    for (const at::Tensor& tensor : all) {
      const at::Tensor on_host = tensor.cpu();
      const int64_t* values = on_host.const_data_ptr<int64_t>();
      sizes_.insert(sizes_.end(), values, values + on_host.numel());
    }
    return absl::OkStatus();
  }

  // Every rank has the same sizes and returns the same verdict. So no rank waits for bytes that another rank
  // refuses to send. The running total is checked at each step, so it does not overflow.
  absl::Status check_sizes() const {
    int64_t total = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const std::string sender = from_root() ? absl::StrCat("rank ", root_) : absl::StrCat("rank ", i);
      if (sizes_[i] == kNoObject)
        return absl::InvalidArgumentError(absl::StrCat(sender, " could not encode its object"));
      if (sizes_[i] < 0 || sizes_[i] > kMaxObjectBytes || (total += sizes_[i]) > kMaxObjectBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("the objects are too large: the object of ", sender, " has ", sizes_[i],
                         " bytes; the limit for all objects together is ", kMaxObjectBytes, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status broadcast() {
    at::Tensor bytes = at_root() ? exchange_.sent[0].to(device_) : make(sizes_[0], at::kByte);
    GRADWIRE_RETURN_IF_ERROR(operations::broadcast(run_, bytes, root_));
    run_.order_behind_last_step();
    return exchange_.receive({bytes.cpu()});
  }

  // All-gather, gather and scatter of objects are one all-to-all: the sizes differ between ranks, and ranks
  // that exchange nothing have empty tensors.
  absl::Status exchange_bytes() {
    Tensors inputs;
    Tensors outputs;
    for (int other = 0; other < run_.size; ++other) {
      inputs.push_back(input_for(other));
      outputs.push_back(output_from(other));
    }
    GRADWIRE_RETURN_IF_ERROR(operations::all_to_all(run_, outputs, std::move(inputs)));
    run_.order_behind_last_step();
    if (exchange_.kind == ExchangeKind::kScatter)
      return exchange_.receive({outputs[static_cast<std::size_t>(root_)].cpu()});
    if (exchange_.kind == ExchangeKind::kGather && !at_root()) return exchange_.receive({});
    for (at::Tensor& output : outputs) output = output.cpu();
    return exchange_.receive(std::move(outputs));
  }

  at::Tensor input_for(int other) const {
    const bool sends = exchange_.kind == ExchangeKind::kAllGather ||
                       (exchange_.kind == ExchangeKind::kGather && other == root_) ||
                       (exchange_.kind == ExchangeKind::kScatter && at_root());
    if (!sends) return make(0, at::kByte);
    return exchange_.sent[exchange_.kind == ExchangeKind::kScatter ? static_cast<std::size_t>(other) : 0].to(
        device_);
  }

  at::Tensor output_from(int other) const {
    switch (exchange_.kind) {
      case ExchangeKind::kAllGather:
        return make(sizes_[static_cast<std::size_t>(other)], at::kByte);
      case ExchangeKind::kGather:
        return make(at_root() ? sizes_[static_cast<std::size_t>(other)] : 0, at::kByte);
      default:
        return make(other == root_ ? sizes_[static_cast<std::size_t>(run_.rank)] : 0, at::kByte);
    }
  }

  RunContext& run_;
  ObjectExchange& exchange_;
  const int root_;
  const c10::Device device_;
  // Sizes in bytes. kAllGather, kGather: of each rank's object. kScatter: of the root's object for each rank.
  // kBroadcast: of the root's object.
  std::vector<int64_t> sizes_;
};

absl::Status check_count(const ObjectExchange& exchange, bool at_root, int size) {
  const bool sends =
      at_root || exchange.kind == ExchangeKind::kAllGather || exchange.kind == ExchangeKind::kGather;
  const std::size_t expected = !sends                                    ? 0
                               : exchange.kind == ExchangeKind::kScatter ? static_cast<std::size_t>(size)
                                                                         : 1;
  if (exchange.sent.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("wrong number of objects on this rank: got ",
                                                 exchange.sent.size(), ", expected ", expected));
}

}  // namespace

ProcessGroup::WorkPtr ProcessGroupImpl::begin_exchange_objects(Mode mode, ObjectExchange exchange) {
  OperationRecord record;
  record.operation = operation_of(exchange.kind);
  int root = 0;
  if (exchange.kind != ExchangeKind::kAllGather) {
    root =
        check_rank(record.operation, exchange.root, exchange.kind == ExchangeKind::kGather ? "dst" : "src");
    record.peer = exchange.root;
  }
  check(record.operation, check_count(exchange, root == rank(), size()));
  const c10::Device device = own_device_;
  return runner_->perform(mode, record, device,
                          [exchange = std::move(exchange), root, device](RunContext& run) mutable {
                            return Exchange(run, exchange, root, device).run();
                          });
}

}  // namespace gradwire::collectives
