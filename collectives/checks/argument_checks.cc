#include "gradwire/collectives/checks/argument_checks.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/checks/reduction_meaning.h"

namespace gradwire::collectives::argument_checks_internal {
namespace {

// Helpers for the error messages of ArgumentChecks.

inline absl::Status invalid(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name, " ", what));
}

inline std::string describe(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ", "), "] on ",
                      tensor.device().str());
}

inline absl::Status same_kind(const at::Tensor& tensor, const at::Tensor& like, absl::string_view name) {
  if (tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device()) return absl::OkStatus();
  return invalid(name, absl::StrCat("is ", describe(tensor), ", but the other tensor is ", describe(like)));
}

}  // namespace

}  // namespace gradwire::collectives::argument_checks_internal

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

// The part of ArgumentChecks that checks lists of tensors.

using argument_checks_internal::describe;
using argument_checks_internal::invalid;
using argument_checks_internal::same_kind;

absl::Status ArgumentChecks::list(const Tensors& list, const at::Tensor& like, bool written,
                                  absl::string_view name) const {
  if (list.size() != group_.ranks.size()) {
    return invalid(name, absl::StrCat("has ", list.size(), " tensors; the group has ", size(), " ranks"));
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto check_one = [&]() -> absl::Status {
      const std::string entry = absl::StrCat(name, "[", i, "]");
      GRADWIRE_RETURN_IF_ERROR(written ? writable(list[i], entry) : readable(list[i], entry));
      GRADWIRE_RETURN_IF_ERROR(same_kind(list[i], like, entry));
      if (list[i].sizes() == like.sizes()) return absl::OkStatus();
      return invalid(entry,
                     absl::StrCat("is ", describe(list[i]), ", but the other tensor is ", describe(like)));
    };
    // Fast path: most tensors pass these checks, and no string with the entry's name is built for them.
    const at::Tensor& tensor = list[i];
    if (tensor.defined() && tensor.is_contiguous() && readable(tensor, name).ok() &&
        tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device() &&
        tensor.sizes() == like.sizes()) {
      continue;
    }
    GRADWIRE_RETURN_IF_ERROR(check_one());
  }
  return absl::OkStatus();
}

absl::Status ArgumentChecks::outputs(const Tensors& list, const at::Tensor& like,
                                     absl::string_view name) const {
  return this->list(list, like, true, name);
}

absl::Status ArgumentChecks::outputs_of_ranks(const Tensors& list, const at::Tensor& like,
                                              absl::string_view name) const {
  if (list.size() != group_.ranks.size()) {
    return invalid(name, absl::StrCat("has ", list.size(), " tensors; the group has ", size(), " ranks"));
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string entry = absl::StrCat(name, "[", i, "]");
    GRADWIRE_RETURN_IF_ERROR(writable(list[i], entry));
    GRADWIRE_RETURN_IF_ERROR(same_kind(list[i], like, entry));
  }
  const at::Tensor& own = list[static_cast<std::size_t>(group_.rank)];
  if (own.sizes() == like.sizes()) return absl::OkStatus();
  return invalid(absl::StrCat(name, "[", group_.rank, "]"),
                 absl::StrCat("is ", describe(own), ", but this rank's tensor is ", describe(like)));
}

absl::Status ArgumentChecks::inputs(const Tensors& list, const at::Tensor& like,
                                    absl::string_view name) const {
  return this->list(list, like, false, name);
}

absl::Status ArgumentChecks::root_list(const Tensors& list, const at::Tensor& like, bool at_root,
                                       bool written, absl::string_view name) const {
  if (at_root) return this->list(list, like, written, name);
  if (list.empty()) return absl::OkStatus();
  return invalid(name, absl::StrCat("has ", list.size(), " tensors; it must be empty except at the root"));
}

absl::Status ArgumentChecks::all_to_all(const Tensors& outputs, const Tensors& inputs) const {
  const auto check_size = [this](const Tensors& list, absl::string_view name) {
    if (list.size() == group_.ranks.size()) return absl::OkStatus();
    return invalid(name, absl::StrCat("has ", list.size(), " tensors; the group has ", size(), " ranks"));
  };
  GRADWIRE_RETURN_IF_ERROR(check_size(outputs, "outputs"));
  GRADWIRE_RETURN_IF_ERROR(check_size(inputs, "inputs"));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string entry = absl::StrCat("inputs[", i, "]");
    GRADWIRE_RETURN_IF_ERROR(readable(inputs[i], entry));
    GRADWIRE_RETURN_IF_ERROR(same_kind(inputs[i], inputs[0], entry));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string entry = absl::StrCat("outputs[", i, "]");
    GRADWIRE_RETURN_IF_ERROR(writable(outputs[i], entry));
    GRADWIRE_RETURN_IF_ERROR(same_kind(outputs[i], inputs[0], entry));
  }
  const at::Tensor& to_self = inputs[group_.rank];
  const at::Tensor& from_self = outputs[group_.rank];
  if (to_self.numel() == from_self.numel()) return absl::OkStatus();
  return invalid(
      absl::StrCat("outputs[", group_.rank, "]"),
      absl::StrCat("is ", describe(from_self), ", but this rank sends itself ", describe(to_self)));
}

absl::Status ArgumentChecks::whole_and_part(const at::Tensor& whole, absl::string_view whole_name,
                                            const at::Tensor& part, absl::string_view part_name) const {
  GRADWIRE_RETURN_IF_ERROR(same_kind(whole, part, whole_name));
  // Accept two shapes: the parts concatenated along dimension 0, or stacked along a new first dimension.
  const int64_t first = part.dim() == 0 ? 1 : part.size(0);
  const bool concatenated = whole.dim() >= 1 && whole.dim() == std::max<int64_t>(part.dim(), 1) &&
                            whole.size(0) == size() * first &&
                            (part.dim() == 0 || whole.sizes().slice(1) == part.sizes().slice(1));
  const bool stacked =
      whole.dim() == part.dim() + 1 && whole.size(0) == size() && whole.sizes().slice(1) == part.sizes();
  if (concatenated || stacked) return absl::OkStatus();
  return invalid(whole_name, absl::StrCat("is ", describe(whole), "; it must be ", size(), " times ",
                                          part_name, ", ", describe(part), ", along dimension 0 or stacked"));
}

absl::Status ArgumentChecks::one_per_device(const Tensors& tensors) const {
  if (tensors.empty()) return invalid("tensors", "is empty; expected one tensor for each GPU");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string entry = absl::StrCat("tensors[", i, "]");
    GRADWIRE_RETURN_IF_ERROR(writable(tensors[i], entry));
    if (tensors[i].is_cpu())
      return invalid(entry, absl::StrCat("is ", describe(tensors[i]), ", expected a tensor on a GPU"));
    if (tensors[i].device().type() != tensors[0].device().type()) {
      return invalid(entry, absl::StrCat("is on ", tensors[i].device().str(), ", but tensors[0] is on ",
                                         tensors[0].device().str()));
    }
    if (tensors[i].scalar_type() != tensors[0].scalar_type() || tensors[i].sizes() != tensors[0].sizes()) {
      return invalid(entry,
                     absl::StrCat("is ", describe(tensors[i]), ", but tensors[0] is ", describe(tensors[0])));
    }
    if (!tensors[i].is_contiguous()) return invalid(entry, "is not contiguous");
    for (std::size_t j = 0; j < i; ++j) {
      if (tensors[i].device() != tensors[j].device()) continue;
      return invalid(entry,
                     absl::StrCat("is on ", tensors[i].device().str(), ", the device of tensors[", j, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status ArgumentChecks::lists_per_device(const std::vector<Tensors>& lists,
                                              const Tensors& tensors) const {
  if (lists.size() != tensors.size()) {
    return invalid("lists", absl::StrCat("has ", lists.size(), " entries for ", tensors.size(), " tensors"));
  }
  const std::size_t expected = group_.ranks.size() * tensors.size();
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::string entry = absl::StrCat("lists[", i, "]");
    if (lists[i].size() != expected) {
      return invalid(entry, absl::StrCat("has ", lists[i].size(), " tensors, expected ", expected));
    }
    for (const at::Tensor& tensor : lists[i]) {
      GRADWIRE_RETURN_IF_ERROR(writable(tensor, entry));
      GRADWIRE_RETURN_IF_ERROR(same_kind(tensor, tensors[i], entry));
      if (tensor.sizes() != tensors[i].sizes() || !tensor.is_contiguous()) {
        return invalid(entry, absl::StrCat("holds ", describe(tensor), ", expected contiguous tensors like ",
                                           describe(tensors[i])));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
