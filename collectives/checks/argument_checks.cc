#include "gradwire/collectives/checks/argument_checks.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/checks/argument_messages.h"
#include "gradwire/collectives/checks/reduction_meaning.h"

namespace gradwire::collectives {

using argument_checks_internal::describe;
using argument_checks_internal::invalid;
using argument_checks_internal::same_kind;

namespace {

bool serves(const std::vector<ServedDevice>& served, c10::DeviceType type) {
  return std::any_of(served.begin(), served.end(),
                     [type](const ServedDevice& each) { return each.type == type; });
}

// For messages: "tensors on cpu (backend cpu) and cuda (backend nccl)".
std::string describe_served(const std::vector<ServedDevice>& served) {
  return absl::StrCat("tensors on ",
                      absl::StrJoin(served, " and ", [](std::string* out, const ServedDevice& each) {
                        absl::StrAppend(out, c10::DeviceTypeName(each.type, /*lower_case=*/true),
                                        " (backend ", each.backend, ")");
                      }));
}

}  // namespace

// The ranks are ascending, so the last one gives the size of the table. -1: not a member.
ArgumentChecks::ArgumentChecks(Group group)
    : group_(std::move(group)), takes_cpu_(serves(group_.served, c10::DeviceType::CPU)) {
  if (!group_.ranks.empty()) group_rank_of_.assign(static_cast<std::size_t>(group_.ranks.back()) + 1, -1);
  for (int i = 0; i < size(); ++i) group_rank_of_[group_.ranks[i]] = i;
}

absl::StatusOr<int> ArgumentChecks::group_rank(int world_rank, absl::string_view name) const {
  if (const int rank = find_rank(world_rank); rank >= 0) return rank;
  return invalid(name, absl::StrCat("is rank ", world_rank, ", which is not one of the group's ranks: ",
                                    absl::StrJoin(group_.ranks, ", ")));
}

absl::Status ArgumentChecks::readable_slow(const at::Tensor& tensor, absl::string_view name) const {
  if (!tensor.defined()) return invalid(name, "is undefined");
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return invalid(
        name,
        absl::StrCat("is ", tensor.is_quantized() ? "quantized" : "not dense (",
                     tensor.is_quantized() ? "" : c10::str(tensor.layout()), tensor.is_quantized() ? "" : ")",
                     "; collectives need dense tensors, only all_reduce takes a sparse COO one"));
  }
  if (serves(group_.served, tensor.device().type())) return absl::OkStatus();
  return invalid(name,
                 absl::StrCat("is ", describe(tensor), "; this group takes ", describe_served(group_.served),
                              tensor.is_cuda() && !is_nccl_available()
                                  ? " (this program was built without CUDA: --config=cuda)"
                                  : ""));
}

absl::Status ArgumentChecks::writable_slow(const at::Tensor& tensor, absl::string_view name) const {
  GRADWIRE_RETURN_IF_ERROR(readable(tensor, name));
  if (tensor.is_contiguous()) return absl::OkStatus();
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return invalid(
        name, absl::StrCat("is ", describe(tensor), " with strides [", absl::StrJoin(tensor.strides(), ", "),
                           "]: several of its elements share memory, so it cannot be written to"));
  }
  return absl::OkStatus();
}

absl::Status ArgumentChecks::reduction(const Reduction& op, const at::Tensor& tensor) const {
  const at::ScalarType dtype = tensor.scalar_type();
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(op.multiplies ? "premul_sum" : to_string(op.op), " of ",
                                                   c10::toString(dtype), ": ", why));
  };
  if (const char* const why = unsupported_reason(op, dtype)) return refuse(why);
  return absl::OkStatus();
}

absl::Status ArgumentChecks::sparse_reduction(const Reduction& op, const at::Tensor& tensor,
                                              absl::string_view name) const {
  if (!serves(group_.served, tensor.device().type())) {
    return invalid(
        name, absl::StrCat("is ", describe(tensor), "; this group takes ", describe_served(group_.served)));
  }
  if (tensor.dim() > kMaxSparseDimensions) {
    return invalid(name, absl::StrCat("has ", tensor.dim(), " dimensions; a sparse tensor may have at most ",
                                      kMaxSparseDimensions));
  }
  if (op.op == ReduceOp::kSum || op.op == ReduceOp::kAvg) return reduction(op, tensor);
  return absl::InvalidArgumentError(
      absl::StrCat(to_string(op.op), " of a sparse tensor is not supported; use sum, avg or premul_sum"));
}

absl::StatusOr<std::vector<int64_t>> ArgumentChecks::splits(const at::Tensor& tensor,
                                                            const std::vector<int64_t>& splits,
                                                            absl::string_view name) const {
  if (tensor.dim() == 0) return invalid(name, "has no dimension to split");
  const int64_t length = tensor.size(0);
  if (splits.empty()) {
    if (length % size() == 0) return std::vector<int64_t>(group_.ranks.size(), length / size());
    return invalid(name, absl::StrCat("has ", length, " rows, which cannot be divided into ", size(),
                                      " equal parts: give splits"));
  }
  if (splits.size() != group_.ranks.size()) {
    return invalid(name,
                   absl::StrCat("is given ", splits.size(), " splits; the group has ", size(), " ranks"));
  }
  int64_t left = length;
  for (int64_t split : splits) {
    // Subtract the splits one by one: their sum may overflow.
    if (split < 0 || split > left) left = -1;
    if (left < 0) break;
    left -= split;
  }
  if (left == 0) return splits;
  return invalid(name,
                 absl::StrCat("has ", length, " rows, but its splits are ", absl::StrJoin(splits, ", ")));
}

absl::Status ArgumentChecks::rows_to_self(const at::Tensor& output, int64_t output_rows,
                                          const at::Tensor& input, int64_t input_rows) const {
  GRADWIRE_RETURN_IF_ERROR(same_kind(output, input, "output"));
  if (output.sizes().slice(1) != input.sizes().slice(1)) {
    return invalid("output", absl::StrCat("is ", describe(output), " and input ", describe(input),
                                          ": they differ in more than dimension 0"));
  }
  if (output_rows == input_rows) return absl::OkStatus();
  return invalid("output",
                 absl::StrCat("expects ", output_rows, " rows from this rank itself, but input has ",
                              input_rows, " rows for it"));
}

absl::Status ArgumentChecks::refuse_tag(int tag) {
  return invalid("the tag", absl::StrCat("is ", tag, "; tags are 0 or more"));
}

}  // namespace gradwire::collectives
