#include "gradwire/collectives/cpu/wide/wide_reductions.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstddef>

#include "gradwire/base/error.h"
#include "gradwire/collectives/checks/reduction_meaning.h"
#include "gradwire/collectives/cpu/bytes/reducers.h"

namespace gradwire::collectives::cpu {
namespace {

// Shorter data is reduced as float in one operation. At this size the parts take as long with four ranks, and
// 0.7 of the time with two (tools/bench/collectives/collective_choices.cc).
constexpr std::size_t kLongBytes = std::size_t{64} << 10;
// Longer calls of libtorch would use threads of their own.
constexpr int64_t kChunk = 32768;

Span span_of(const at::Tensor& tensor) { return {tensor.data_ptr(), tensor.nbytes()}; }

at::Tensor empty_like(const at::Tensor& tensor, int64_t count, at::ScalarType dtype) {
  return at::empty({count}, tensor.options().dtype(dtype).requires_grad(false));
}

// The parts of all members, one after the other in `parts`, combined in float.
at::Tensor combine(const at::Tensor& parts, int size, ReduceOp op) {
  const int64_t count = parts.numel() / size;
  at::Tensor sum = empty_like(parts, count, at::kFloat);
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t length = std::min(kChunk, count - first);
    at::Tensor into = sum.narrow(0, first, length);
    into.copy_(parts.narrow(0, first, length));
    for (int member = 1; member < size; ++member) {
      combine_tensors(op, into, into, parts.narrow(0, member * count + first, length));
    }
  }
  return sum;
}

}  // namespace

void WideReductions::finish(at::Tensor sum, ReduceOp op, const at::Tensor& output) const {
  if (op == ReduceOp::kAvg) sum.div_(static_cast<double>(size_));
  at::Tensor into = output;
  into.copy_(sum.view(output.sizes()));
}

// Inference mode keeps the arithmetic out of autograd.
absl::Status WideReductions::reduce(const at::Tensor& tensor, int root, ReduceOp op, absl::Time deadline) {
  const c10::InferenceMode mode;
  const at::Tensor wide = tensor.to(at::kFloat);
  GRADWIRE_RETURN_IF_ERROR(group_.reduce(span_of(wide), root, *reducer_of(op, at::kFloat), deadline));
  if (rank_ == root) finish(wide, op, tensor);
  return absl::OkStatus();
}

absl::Status WideReductions::all_reduce(const at::Tensor& tensor, ReduceOp op, absl::Time deadline) {
  const c10::InferenceMode mode;
  if (tensor.nbytes() >= kLongBytes) return all_reduce_by_parts(tensor, op, deadline);
  const at::Tensor wide = tensor.to(at::kFloat);
  GRADWIRE_RETURN_IF_ERROR(group_.all_reduce(span_of(wide), *reducer_of(op, at::kFloat), deadline));
  finish(wide, op, tensor);
  return absl::OkStatus();
}

// The all-gather needs parts of one size, so the tensor's last elements, which do not fill a part of every
// member, are reduced as a short tensor.
absl::Status WideReductions::all_reduce_by_parts(const at::Tensor& tensor, ReduceOp op, absl::Time deadline) {
  const int64_t each = tensor.numel() / size_, whole = each * size_;
  const at::Tensor flat = tensor.view({-1});
  const auto bytes = static_cast<std::size_t>(each) * tensor.element_size();
  std::vector<Span> parts;
  for (int member = 0; member < size_; ++member)
    parts.push_back(span_of(flat).part(static_cast<std::size_t>(member) * bytes, bytes));
  const at::Tensor own = flat.narrow(0, rank_ * each, each);
  GRADWIRE_RETURN_IF_ERROR(reduce_scatter(own, parts, op, deadline));
  GRADWIRE_RETURN_IF_ERROR(group_.all_gather(span_of(own), parts, deadline));
  if (whole == tensor.numel()) return absl::OkStatus();
  return all_reduce(flat.narrow(0, whole, tensor.numel() - whole), op, deadline);
}

absl::Status WideReductions::reduce_scatter(const at::Tensor& output, absl::Span<const Span> inputs,
                                            ReduceOp op, absl::Time deadline) {
  const c10::InferenceMode mode;
  const at::Tensor received = empty_like(output, output.numel() * size_, output.scalar_type());
  std::vector<Span> parts;
  for (int member = 0; member < size_; ++member)
    parts.push_back(
        span_of(received).part(static_cast<std::size_t>(member) * output.nbytes(), output.nbytes()));
  GRADWIRE_RETURN_IF_ERROR(group_.all_to_all(parts, inputs, deadline));
  finish(combine(received, size_, op), op, output);
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::cpu
