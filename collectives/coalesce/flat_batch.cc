#include "gradwire/collectives/coalesce/flat_batch.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <utility>

namespace gradwire::collectives {
namespace {

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

}  // namespace

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

}  // namespace gradwire::collectives
