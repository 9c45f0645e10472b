#include "gradwire/collectives/coalesce/coalesced.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/collectives/coalesced_call.h"
#include "gradwire/collectives/operations/operations.h"

namespace gradwire::collectives {
namespace {

// Small calls of one kind that run as one collective on one buffer: their data is copied together, and the
// results are copied out. Reductions are joined only if they have one dtype and one operation, broadcasts if
// they have one root. The tensors are plain and in the memory of the host. Used by one thread.
class FlatBatch {
 public:
  // A batch with this call. REQUIRES: takes(call)
  FlatBatch(RunContext& run, CoalescedCall call);

  // Whether the call is small enough, and of a kind that can be joined.
  static bool takes(const CoalescedCall& call);
  // Whether the call can be added to this batch. REQUIRES: takes(call)
  bool accepts(const CoalescedCall& call) const;
  // REQUIRES: accepts(call)
  void add(CoalescedCall call);

  const std::vector<CoalescedCall>& calls() const { return calls_; }
  // Runs the calls. Errors: as the backend's.
  absl::Status run();

 private:
  // Bytes that one call adds to a part of the buffer.
  static int64_t part_bytes(const CoalescedCall& call);
  absl::Status all_reduce(const at::Tensor& flat);
  absl::Status broadcast(const at::Tensor& flat);
  absl::Status all_gather(const at::Tensor& flat);
  absl::Status reduce_scatter(const at::Tensor& flat);

  RunContext& run_;
  std::vector<CoalescedCall> calls_;
  int64_t bytes_ = 0;
};

using Kind = CoalescedCall::Kind;

// A tensor of at most so many bytes is copied into a batch. With four ranks 16 tensors of this size then take
// 0.7 of the time, and larger ones as long as one by one (tools/bench/collectives/collective_choices.cc).
constexpr int64_t kSmallBytes = int64_t{32} << 10;
// The size of one rank's part of a batch.
constexpr int64_t kBatchBytes = int64_t{1} << 20;

bool is_gather(Kind kind) { return kind == Kind::kAllGather || kind == Kind::kAllGatherIntoTensor; }
bool is_reduce_scatter(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kReduceScatterTensor;
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Where the part of `rank` is in a list of tensors, or in one tensor that holds all parts.
char* part_in(const std::vector<at::Tensor>& tensors, int rank, int64_t bytes) {
  if (tensors.size() > 1) return static_cast<char*>(tensors[static_cast<std::size_t>(rank)].data_ptr());
  return static_cast<char*>(tensors.front().data_ptr()) + rank * bytes;
}

int64_t FlatBatch::part_bytes(const CoalescedCall& call) {
  return data_bytes(is_gather(call.kind) ? call.inputs.front() : call.outputs.front());
}

bool FlatBatch::takes(const CoalescedCall& call) {
  if (!call.outputs.front().is_cpu() || call.kind == Kind::kAllToAll) return false;
  if (call.kind == Kind::kAllGather && has_other_shape(call.outputs, call.inputs.front())) return false;
  return part_bytes(call) <= kSmallBytes;
}

FlatBatch::FlatBatch(RunContext& run, CoalescedCall call) : run_(run) { add(std::move(call)); }

bool FlatBatch::accepts(const CoalescedCall& call) const {
  const CoalescedCall& first = calls_.front();
  if (bytes_ + part_bytes(call) > kBatchBytes) return false;
  if (is_gather(first.kind)) return is_gather(call.kind);
  if (first.kind == Kind::kBroadcast) return call.kind == first.kind && call.root == first.root;
  const bool same_kind =
      first.kind == call.kind || (is_reduce_scatter(first.kind) && is_reduce_scatter(call.kind));
  return same_kind && call.op.op == first.op.op &&
         call.outputs.front().scalar_type() == first.outputs.front().scalar_type();
}

void FlatBatch::add(CoalescedCall call) {
  bytes_ += part_bytes(call);
  calls_.push_back(std::move(call));
}

absl::Status FlatBatch::run() {
  const c10::InferenceMode ordinary(false);
  const c10::NoGradGuard no_grad;
  const CoalescedCall& first = calls_.front();
  const bool moves = is_gather(first.kind) || first.kind == Kind::kBroadcast;
  const at::ScalarType dtype = moves ? at::kByte : first.outputs.front().scalar_type();
  const int64_t count = bytes_ / static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor flat = at::empty({count}, at::TensorOptions().dtype(dtype));
  if (first.kind == Kind::kAllReduce) return all_reduce(flat);
  if (first.kind == Kind::kBroadcast) return broadcast(flat);
  return moves ? all_gather(flat) : reduce_scatter(flat);
}

absl::Status FlatBatch::all_reduce(const at::Tensor& flat) {
  char* at = static_cast<char*>(flat.mutable_data_ptr());
  for (const CoalescedCall& call : calls_) {
    const int64_t bytes = part_bytes(call);
    copy_bytes(at, call.outputs.front().const_data_ptr(), bytes);
    at += bytes;
  }
  const absl::Status status = run_.backend.all_reduce(flat, calls_.front().op, run_.deadline);
  if (!status.ok()) return status;
  at = static_cast<char*>(flat.mutable_data_ptr());
  for (const CoalescedCall& call : calls_) {
    const int64_t bytes = part_bytes(call);
    copy_bytes(call.outputs.front().data_ptr(), at, bytes);
    at += bytes;
  }
  return absl::OkStatus();
}

absl::Status FlatBatch::broadcast(const at::Tensor& flat) {
  const int root = calls_.front().root;
  char* const begin = static_cast<char*>(flat.mutable_data_ptr());
  int64_t at = 0;
  for (const CoalescedCall& call : calls_) {
    if (run_.rank == root) copy_bytes(begin + at, call.outputs.front().const_data_ptr(), part_bytes(call));
    at += part_bytes(call);
  }
  const absl::Status status = run_.backend.broadcast(flat, root, run_.deadline);
  if (!status.ok() || run_.rank == root) return status;
  at = 0;
  for (const CoalescedCall& call : calls_) {
    copy_bytes(call.outputs.front().data_ptr(), begin + at, part_bytes(call));
    at += part_bytes(call);
  }
  return absl::OkStatus();
}

absl::Status FlatBatch::all_gather(const at::Tensor& flat) {
  char* at = static_cast<char*>(flat.mutable_data_ptr());
  for (const CoalescedCall& call : calls_) {
    copy_bytes(at, call.inputs.front().const_data_ptr(), part_bytes(call));
    at += part_bytes(call);
  }
  const at::Tensor all = at::empty({run_.size * flat.numel()}, flat.options());
  const absl::Status status = run_.backend.all_gather_into_tensor(all, flat, run_.size, run_.deadline);
  if (!status.ok()) return status;
  const char* from = static_cast<const char*>(all.const_data_ptr());
  for (int rank = 0; rank < run_.size; ++rank) {
    for (const CoalescedCall& call : calls_) {
      const int64_t bytes = part_bytes(call);
      copy_bytes(part_in(call.outputs, rank, bytes), from, bytes);
      from += bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status FlatBatch::reduce_scatter(const at::Tensor& flat) {
  const at::Tensor all = at::empty({run_.size * flat.numel()}, flat.options());
  char* at = static_cast<char*>(all.mutable_data_ptr());
  for (int rank = 0; rank < run_.size; ++rank) {
    for (const CoalescedCall& call : calls_) {
      const int64_t bytes = part_bytes(call);
      copy_bytes(at, part_in(call.inputs, rank, bytes), bytes);
      at += bytes;
    }
  }
  const absl::Status status =
      run_.backend.reduce_scatter_tensor(flat, all, calls_.front().op, run_.size, run_.deadline);
  if (!status.ok()) return status;
  const char* from = static_cast<const char*>(flat.const_data_ptr());
  for (const CoalescedCall& call : calls_) {
    const int64_t bytes = part_bytes(call);
    copy_bytes(call.outputs.front().data_ptr(), from, bytes);
    from += bytes;
  }
  return absl::OkStatus();
}

using Tensors = std::vector<at::Tensor>;

Operation name_of_kind(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return Operation::kAllReduceCoalesced;
    case Kind::kAllGather:
    case Kind::kAllGatherIntoTensor:
      return Operation::kAllGatherCoalesced;
    case Kind::kReduceScatter:
    case Kind::kReduceScatterTensor:
      return Operation::kReduceScatterCoalesced;
    case Kind::kBroadcast:
    case Kind::kAllToAll:
      break;
  }
  return Operation::kCoalesced;
}

bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduceScatterTensor;
}

absl::Status invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

// Whether the call has the numbers of tensors that every check below needs.
absl::Status check_numbers(const CoalescedCall& call) {
  const bool only_output = call.kind == Kind::kAllReduce || call.kind == Kind::kBroadcast;
  const bool one_output = only_output || call.kind == Kind::kAllGatherIntoTensor ||
                          call.kind == Kind::kReduceScatter || call.kind == Kind::kReduceScatterTensor;
  const bool one_input = call.kind == Kind::kAllGather || call.kind == Kind::kAllGatherIntoTensor ||
                         call.kind == Kind::kReduceScatterTensor;
  if (call.outputs.empty() || (one_output && call.outputs.size() != 1))
    return invalid(
        absl::StrCat("has ", call.outputs.size(), " outputs, expected ", one_output ? "1" : "a list"));
  if (only_output ? !call.inputs.empty() : call.inputs.empty() || (one_input && call.inputs.size() != 1)) {
    return invalid(absl::StrCat("has ", call.inputs.size(), " inputs, expected ",
                                only_output ? "none" : (one_input ? "1" : "a list")));
  }
  return absl::OkStatus();
}

absl::Status check_call(const ArgumentChecks& checks, CoalescedCall& call, int rank) {
  GRADWIRE_RETURN_IF_ERROR(check_numbers(call));
  const at::Tensor& output = call.outputs.front();
  switch (call.kind) {
    case Kind::kAllReduce:
      GRADWIRE_RETURN_IF_ERROR(checks.writable(output, "the tensor"));
      return checks.reduction(call.op, output);
    case Kind::kBroadcast: {
      GRADWIRE_ASSIGN_OR_RETURN(call.root, checks.group_rank(call.root, "the root"));
      return call.root == rank ? checks.readable(output, "the tensor")
                               : checks.writable(output, "the tensor");
    }
    case Kind::kAllGather:
      GRADWIRE_RETURN_IF_ERROR(checks.readable(call.inputs.front(), "the tensor"));
      return checks.outputs_of_ranks(call.outputs, call.inputs.front(), "the list");
    case Kind::kAllGatherIntoTensor:
      GRADWIRE_RETURN_IF_ERROR(checks.readable(call.inputs.front(), "the input"));
      GRADWIRE_RETURN_IF_ERROR(checks.writable(output, "the output"));
      return checks.whole_and_part(output, "the output", call.inputs.front(), "the input");
    case Kind::kReduceScatter:
      GRADWIRE_RETURN_IF_ERROR(checks.writable(output, "the output"));
      GRADWIRE_RETURN_IF_ERROR(checks.reduction(call.op, output));
      return checks.inputs(call.inputs, output, "the list");
    case Kind::kReduceScatterTensor:
      GRADWIRE_RETURN_IF_ERROR(checks.readable(call.inputs.front(), "the input"));
      GRADWIRE_RETURN_IF_ERROR(checks.writable(output, "the output"));
      GRADWIRE_RETURN_IF_ERROR(checks.reduction(call.op, output));
      return checks.whole_and_part(call.inputs.front(), "the input", output, "the output");
    case Kind::kAllToAll:
      return checks.all_to_all(call.outputs, call.inputs);
  }
  return invalid("unknown kind of collective");
}

// Replaces the tensors of a call by those that the backend can use.
CoalescedCall stage(Staging& staging, CoalescedCall call, int rank) {
  for (at::Tensor& input : call.inputs) {
    input = reduces(call.kind) ? staging.source(std::move(input), call.op) : staging.source(std::move(input));
  }
  if (call.kind == Kind::kAllReduce) {
    call.outputs.front() = staging.target(std::move(call.outputs.front()), call.op);
  } else if (call.kind == Kind::kBroadcast && call.root == rank) {
    call.outputs.front() = staging.source(std::move(call.outputs.front()));
  } else {
    call.outputs = staging.targets(std::move(call.outputs));
  }
  // The values have been multiplied by the factor.
  call.op = call.op.op;
  return call;
}

absl::Status run_one(RunContext& run, const CoalescedCall& call) {
  GroupBackend& backend = run.backend;
  switch (call.kind) {
    case Kind::kAllReduce:
      return backend.all_reduce(call.outputs[0], call.op, run.deadline);
    case Kind::kBroadcast:
      return backend.broadcast(call.outputs[0], call.root, run.deadline);
    case Kind::kAllGather:
      if (has_other_shape(call.outputs, call.inputs[0])) {
        return backend.all_gather_uneven(call.inputs[0], call.outputs, run.deadline);
      }
      return backend.all_gather(call.inputs[0], call.outputs, run.deadline);
    case Kind::kAllGatherIntoTensor:
      return backend.all_gather_into_tensor(call.outputs[0], call.inputs[0], run.size, run.deadline);
    case Kind::kReduceScatter:
      return backend.reduce_scatter(call.outputs[0], call.inputs, call.op, run.deadline);
    case Kind::kReduceScatterTensor:
      return backend.reduce_scatter_tensor(call.outputs[0], call.inputs[0], call.op, run.size, run.deadline);
    case Kind::kAllToAll:
      return backend.all_to_all(call.outputs, call.inputs, run.deadline);
  }
  return absl::InternalError("unknown kind of collective");
}

}  // namespace

OperationRecord record_of_calls(const std::vector<CoalescedCall>& calls) {
  OperationRecord record;
  record.operation = calls.empty() ? Operation::kCoalesced : name_of_kind(calls.front().kind);
  std::string text;
  for (const CoalescedCall& call : calls) {
    if (name_of_kind(call.kind) != record.operation) record.operation = Operation::kCoalesced;
    absl::StrAppend(&text, static_cast<int>(call.kind), " ", static_cast<int>(call.op.op), " ",
                    call.op.multiplies, " ", call.root);
    for (const at::Tensor& tensor : call.inputs) record.bytes += data_bytes(tensor);
    for (const at::Tensor& tensor : call.outputs) {
      if (!tensor.defined()) continue;
      if (record.dtype == nullptr) record.dtype = c10::toString(tensor.scalar_type());
      absl::StrAppend(&text, " ", static_cast<int>(tensor.scalar_type()));
      // The shapes of an all-to-all differ between ranks; other outputs have the same shapes on all ranks.
      if (call.kind == Kind::kAllToAll) continue;
      record.elements += tensor.numel();
      for (const int64_t size : tensor.sizes()) absl::StrAppend(&text, ",", size);
    }
    absl::StrAppend(&text, ";");
  }
  record.dimensions = 1;
  record.sizes[0] =
      static_cast<uint32_t>(std::min<int64_t>(record.elements, std::numeric_limits<uint32_t>::max()));
  record.shape_hash = stable_hash(text);
  return record;
}

absl::Status check_calls(const ArgumentChecks& checks, std::vector<CoalescedCall>& calls) {
  if (calls.empty()) return invalid("there are no calls; expected at least one");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CoalescedCall& call = calls[i];
    const std::string place = absl::StrCat("call ", i);
    GRADWIRE_RETURN_IF_ERROR(with_context(check_call(checks, call, checks.rank()), place));
    const c10::Device first = calls.front().outputs.front().device(), own = call.outputs.front().device();
    if (own != first) {
      return invalid(absl::StrCat(place, ": its tensors are on ", own.str(), ", but those of call 0 are on ",
                                  first.str(), "; use one coalesced operation for each device"));
    }
  }
  return absl::OkStatus();
}

// 1. Stage all tensors.
// 2. Put small calls in the memory of the host into batches. All ranks make the same batches, because they
//    have the same calls.
// 3. Run the other calls and the batches.
// 4. Copy the results out of the batches, then out of the staged tensors.
absl::Status run_calls(RunContext& run, std::vector<CoalescedCall> calls) {
  const c10::Device device = calls.front().outputs.front().device();
  Staging staging(run);
  std::vector<std::unique_ptr<FlatBatch>> batches;
  std::vector<std::function<absl::Status()>> steps;
  for (CoalescedCall& call : calls) {
    call = stage(staging, std::move(call), run.rank);
    if (FlatBatch::takes(call)) {
      const auto open = std::find_if(batches.begin(), batches.end(),
                                     [&](const auto& batch) { return batch->accepts(call); });
      if (open != batches.end()) {
        (*open)->add(call);
      } else {
        batches.push_back(std::make_unique<FlatBatch>(run, call));
      }
    } else {
      steps.push_back([&run, &call] { return run_one(run, call); });
    }
  }
  for (const auto& batch : batches) {
    if (batch->calls().size() == 1) {
      steps.push_back([&run, &batch] { return run_one(run, batch->calls().front()); });
    } else {
      steps.push_back([&batch] { return batch->run(); });
    }
  }
  return staging.finish(run.backend.together(device, steps));
}

}  // namespace gradwire::collectives
