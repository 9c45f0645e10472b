// The backend "cpu": converts tensors to bytes for CpuGroup.
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/bytes/reducers.h"
#include "gradwire/collectives/cpu/cpu_group.h"
#include "gradwire/collectives/cpu/wide/wide_reductions.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/device/memory_deleter.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives::cpu {
namespace {

Span span_of(const at::Tensor& tensor) { return {tensor.data_ptr(), tensor.nbytes()}; }

// Keeps the memory of the tensor, but not the tensor, to which a graph of the program may belong: the end may
// come on a thread on duty (base/duty.h).
template <class T>
void keep_memory_until(const Future<T>& end, const at::Tensor& tensor) {
  if (end.done()) return;
  end.on_ready_inline([memory = tensor.storage(), executor = end.executor()](const auto&) mutable {
    if (device::has_own_deleter(memory) && executor != nullptr)
      executor->run_off_duty([memory = std::move(memory)] {});
  });
}

// Spans of the parts of a list, without an allocation for a small group. Parts of one tensor are spans, too,
// and not views of it: a view costs a microsecond, more than a short collective.
using PartSpans = absl::InlinedVector<Span, 8>;

PartSpans spans_of(const std::vector<at::Tensor>& tensors) {
  PartSpans spans;
  spans.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) spans.push_back(span_of(tensor));
  return spans;
}

// The equal parts of a contiguous tensor.
PartSpans equal_parts(const at::Tensor& whole, int count) {
  const std::size_t bytes = whole.nbytes() / static_cast<std::size_t>(count);
  PartSpans parts;
  for (int i = 0; i < count; ++i)
    parts.push_back(span_of(whole).part(static_cast<std::size_t>(i) * bytes, bytes));
  return parts;
}

// Consecutive rows of a contiguous tensor: `counts[i]` rows for member i.
PartSpans rows_of(const at::Tensor& whole, const std::vector<int64_t>& counts) {
  const int64_t rows = whole.size(0);
  const std::size_t row_bytes = rows == 0 ? 0 : whole.nbytes() / static_cast<std::size_t>(rows);
  PartSpans parts;
  std::size_t at = 0;
  for (const int64_t count : counts) {
    const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes;
    parts.push_back(span_of(whole).part(at, bytes));
    at += bytes;
  }
  return parts;
}

class CpuBackend final : public GroupBackend {
 public:
  CpuBackend(std::shared_ptr<WorldP2p> p2p, std::unique_ptr<CpuGroup> group, std::vector<int> world_ranks)
      : p2p_(std::move(p2p)),
        group_(std::move(group)),
        world_ranks_(std::move(world_ranks)),
        wide_(*group_, group_->rank(), static_cast<int>(world_ranks_.size())) {}

  absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) override {
    return group_->broadcast(span_of(tensor), root, deadline);
  }

  absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) override {
    const Reducer* const reducer = reducer_of(op.op, tensor.scalar_type());
    if (reducer == nullptr) return unsupported(tensor, op);
    if (wide_.takes(op.op, tensor.scalar_type())) return wide_.reduce(tensor, root, op.op, deadline);
    GRADWIRE_RETURN_IF_ERROR(group_->reduce(span_of(tensor), root, *reducer, deadline));
    if (rank() == root) average(tensor, op);
    return absl::OkStatus();
  }

  absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) override {
    const Reducer* const reducer = reducer_of(op.op, tensor.scalar_type());
    if (reducer == nullptr) return unsupported(tensor, op);
    if (wide_.takes(op.op, tensor.scalar_type())) return wide_.all_reduce(tensor, op.op, deadline);
    absl::Status status = group_->all_reduce(span_of(tensor), *reducer, deadline);
    if (status.ok()) average(tensor, op);
    return status;
  }

  absl::Status gather(at::Tensor tensor, std::vector<at::Tensor> outputs, int root,
                      absl::Time deadline) override {
    return group_->gather(span_of(tensor), spans_of(outputs), root, deadline);
  }

  absl::Status all_gather(at::Tensor tensor, std::vector<at::Tensor> outputs, absl::Time deadline) override {
    return group_->all_gather(span_of(tensor), spans_of(outputs), deadline);
  }

  // The same operation, so that a rank whose list has a wrong entry does not run another one than the others.
  absl::Status all_gather_uneven(at::Tensor tensor, std::vector<at::Tensor> outputs,
                                 absl::Time deadline) override {
    return group_->all_gather(span_of(tensor), spans_of(outputs), deadline);
  }

  absl::Status scatter(at::Tensor tensor, std::vector<at::Tensor> inputs, int root,
                       absl::Time deadline) override {
    return group_->scatter(span_of(tensor), spans_of(inputs), root, deadline);
  }

  absl::Status reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, const Reduction& op,
                              absl::Time deadline) override {
    const Reducer* const reducer = reducer_of(op.op, output.scalar_type());
    if (reducer == nullptr) return unsupported(output, op);
    if (wide_.takes(op.op, output.scalar_type()))
      return wide_.reduce_scatter(output, spans_of(inputs), op.op, deadline);
    GRADWIRE_RETURN_IF_ERROR(group_->reduce_scatter(span_of(output), spans_of(inputs), *reducer, deadline));
    average(output, op);
    return absl::OkStatus();
  }

  absl::Status all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                          absl::Time deadline) override {
    return group_->all_to_all(spans_of(outputs), spans_of(inputs), deadline);
  }

  absl::Status all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                      absl::Time deadline) override {
    return group_->all_gather(span_of(input), equal_parts(output, size), deadline);
  }

  absl::Status reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op, int size,
                                     absl::Time deadline) override {
    const Reducer* const reducer = reducer_of(op.op, output.scalar_type());
    if (reducer == nullptr) return unsupported(output, op);
    if (wide_.takes(op.op, output.scalar_type()))
      return wide_.reduce_scatter(output, equal_parts(input, size), op.op, deadline);
    GRADWIRE_RETURN_IF_ERROR(
        group_->reduce_scatter(span_of(output), equal_parts(input, size), *reducer, deadline));
    average(output, op);
    return absl::OkStatus();
  }

  absl::Status all_to_all_single(at::Tensor output, at::Tensor input,
                                 const std::vector<int64_t>& output_splits,
                                 const std::vector<int64_t>& input_splits, absl::Time deadline) override {
    return group_->all_to_all(rows_of(output, output_splits), rows_of(input, input_splits), deadline);
  }

  absl::Status barrier(absl::Time deadline) override { return group_->barrier(deadline); }

  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) override {
    Future<void> sent = group_->send(dst, tag, span_of(tensor), deadline);
    keep_memory_until(sent, tensor);
    return sent;
  }

  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override {
    Future<int> received = group_->receive(src, tag, span_of(tensor), deadline);
    keep_memory_until(received, tensor);
    return received;
  }

  std::optional<absl::Status> try_send(const at::Tensor& tensor, int dst, int tag) override {
    return group_->try_send(dst, tag, span_of(tensor));
  }

  std::optional<absl::StatusOr<int>> try_receive(const at::Tensor& tensor, int src, int tag) override {
    return group_->try_receive(src, tag, span_of(tensor));
  }

  void abort(const absl::Status& reason) override { group_->abort(std::string(reason.message())); }
  std::shared_ptr<void> world_state() override { return p2p_; }

 private:
  int rank() const { return group_->rank(); }

  // The CpuGroup has added the values up; kAvg divides the sum by the number of members. Inference mode keeps
  // the division out of the graph of autograd.
  void average(at::Tensor& tensor, const Reduction& op) const {
    if (op.op != ReduceOp::kAvg) return;
    const c10::InferenceMode mode;
    tensor.div_(static_cast<double>(world_ranks_.size()));
  }

  static absl::Status unsupported(const at::Tensor& tensor, const Reduction& op) {
    return absl::InvalidArgumentError(
        absl::StrCat(to_string(op.op), " is not supported for ", c10::toString(tensor.scalar_type())));
  }

  const std::shared_ptr<WorldP2p> p2p_;
  const std::unique_ptr<CpuGroup> group_;
  const std::vector<int> world_ranks_;
  WideReductions wide_;
};

absl::Status read_options(const BackendContext& context, CpuGroup::Options& group, WorldP2p::Options& p2p) {
  for (const auto& [name, value] : context.options) {
    std::size_t bytes = 0;
    const bool is_switch = value == "on" || value == "off";
    const bool is_number = absl::SimpleAtoi(value, &bytes) && bytes > 0;
    if (name == "shared_memory" && is_switch) {
      if (value == "off") group.host.clear();
    } else if (name == "transports") {
      p2p.transports = absl::StrSplit(value, ',', absl::SkipEmpty());
    } else if (name == "slot_bytes" && is_number) {
      group.slot_bytes = bytes;
    } else if (name == "flat_bytes" && is_number) {
      group.flat_bytes = bytes;
    } else if (name == "small_bytes" && is_number) {
      group.small_bytes = bytes;
    } else if (name == "segment_bytes" && is_number) {
      group.segment_bytes = bytes;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid option of the cpu backend: got ", name, "=", value,
                       ", expected shared_memory=on|off, transports=shm,tcp, or slot_bytes, flat_bytes, "
                       "small_bytes or segment_bytes with a positive number"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GroupBackend>> make(const BackendContext& context) {
  CpuGroup::Options group{.rank = context.rank,
                          .size = context.size,
                          .world_ranks = context.world_ranks,
                          .name = context.group,
                          .store = context.store,
                          .timeout = context.timeout};
  WorldP2p::Options p2p{.rank = context.rank, .size = context.size};
  GRADWIRE_RETURN_IF_ERROR(read_options(context, group, p2p));
  group.p2p = std::static_pointer_cast<WorldP2p>(context.world_state);
  if (group.p2p == nullptr) {
    p2p.store = std::make_shared<store::PrefixStore>("mesh/", context.store);
    GRADWIRE_ASSIGN_OR_RETURN(p2p.credentials, security::make_credentials(context.security));
    p2p.allowed_users = context.security.allowed_users;
    GRADWIRE_ASSIGN_OR_RETURN(group.p2p, WorldP2p::create(std::move(p2p)));
  }
  // The world makes the WorldP2p, and its smaller groups share it (world_state).
  std::shared_ptr<WorldP2p> kept = group.p2p;
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<CpuGroup> made, CpuGroup::create(std::move(group)));
  return std::make_unique<CpuBackend>(std::move(kept), std::move(made), context.world_ranks);
}

[[maybe_unused]] const bool registered = [] {
  register_backend(Backend::kCpu, make);
  return true;
}();

}  // namespace
}  // namespace gradwire::collectives::cpu
