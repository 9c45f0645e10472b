#include "collectives/argument_checks.h"

#include <ATen/MemoryOverlap.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error.h"

namespace gradwire::collectives {
namespace {

absl::Status invalid(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name, " ", what));
}

std::string describe(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ", "), "] on ",
                      tensor.device().str());
}

bool is_integer(at::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true); }

// What libtorch has arithmetic for on every device.
bool has_arithmetic(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return true;
    default:
      return false;
  }
}

absl::Status same_kind(const at::Tensor& tensor, const at::Tensor& like, absl::string_view name) {
  if (tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device()) return absl::OkStatus();
  return invalid(name, absl::StrCat("is ", describe(tensor), " where the other tensor is ", describe(like)));
}

}  // namespace

ArgumentChecks::ArgumentChecks(Group group) : group_(std::move(group)) {
  if (!group_.ranks.empty()) group_rank_of_.assign(static_cast<std::size_t>(group_.ranks.back()) + 1, -1);
  for (int i = 0; i < size(); ++i) group_rank_of_[group_.ranks[i]] = i;
}

absl::StatusOr<int> ArgumentChecks::group_rank(int world_rank, absl::string_view name) const {
  const bool known = world_rank >= 0 && static_cast<std::size_t>(world_rank) < group_rank_of_.size();
  const int rank = known ? group_rank_of_[world_rank] : -1;
  if (rank >= 0) return rank;
  return invalid(name, absl::StrCat("is rank ", world_rank, ", which is not one of the group's ranks: ",
                                    absl::StrJoin(group_.ranks, ", ")));
}

absl::Status ArgumentChecks::readable(const at::Tensor& tensor, absl::string_view name) const {
  if (tensor.defined() && group_.takes_cpu) {
    const c10::DispatchKeySet special({c10::DispatchKey::Quantized, c10::DispatchKey::MkldnnCPU});
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (impl.is_cpu() && impl.layout() == at::kStrided && !impl.key_set().has_any(special))
      return absl::OkStatus();
  }
  return readable_slow(tensor, name);
}

absl::Status ArgumentChecks::readable_slow(const at::Tensor& tensor, absl::string_view name) const {
  if (!tensor.defined()) return invalid(name, "is undefined");
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return invalid(name, absl::StrCat("is ", tensor.is_quantized() ? "quantized" : "not dense (",
                                      tensor.is_quantized() ? "" : c10::str(tensor.layout()),
                                      tensor.is_quantized() ? "" : ")",
                                      "; collectives take dense tensors: pass its parts"));
  }
  if (tensor.is_cpu() && group_.takes_cpu) return absl::OkStatus();
  if (tensor.is_cuda() && group_.takes_cuda) return absl::OkStatus();
  return invalid(name, absl::StrCat("is ", describe(tensor), "; the backend ", to_string(group_.backend),
                                    " of this group takes tensors on ",
                                    group_.takes_cpu && group_.takes_cuda ? "cpu and cuda"
                                    : group_.takes_cuda                   ? "cuda"
                                                                          : "cpu",
                                    tensor.is_cuda() && !is_nccl_available()
                                        ? " (this program was built without CUDA: --config=cuda)"
                                        : ""));
}

absl::Status ArgumentChecks::writable(const at::Tensor& tensor, absl::string_view name) const {
  GRADWIRE_RETURN_IF_ERROR(readable(tensor, name));
  if (tensor.is_contiguous()) return absl::OkStatus();
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return invalid(
        name, absl::StrCat("is ", describe(tensor), " with strides [", absl::StrJoin(tensor.strides(), ", "),
                           "]: several of its elements share memory, so that it cannot be written to"));
  }
  return absl::OkStatus();
}

absl::Status ArgumentChecks::reduction(const Reduction& op, const at::Tensor& tensor) const {
  const at::ScalarType dtype = tensor.scalar_type();
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(op.multiplies ? "premul_sum" : to_string(op.op), " of ",
                                                   c10::toString(dtype), ": ", why));
  };
  if (!has_arithmetic(dtype)) return refuse("there is no arithmetic for this dtype");
  if (op.multiplies) {
    if (op.op != ReduceOp::kSum) return refuse("only a sum can be premultiplied");
    if (is_integer(dtype)) return refuse("only floating and complex numbers can be premultiplied");
    return absl::OkStatus();
  }
  switch (op.op) {
    case ReduceOp::kSum:
      return absl::OkStatus();
    case ReduceOp::kAvg:
      return is_integer(dtype) ? refuse("only floating and complex numbers have an average")
                               : absl::OkStatus();
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return c10::isComplexType(dtype) ? refuse("not for complex numbers") : absl::OkStatus();
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      if (!is_integer(dtype)) return refuse("bitwise operations are for integers and bool");
      if (group_.backend == Backend::kNccl || (tensor.is_cuda() && !group_.takes_cpu)) {
        return refuse("nccl has no bitwise operations");
      }
      return absl::OkStatus();
  }
  return refuse("there is no such operation");
}

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
                     absl::StrCat("is ", describe(list[i]), " where the other tensor is ", describe(like)));
    };
    // Names are put together for tensors alone that need a closer look.
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

absl::Status ArgumentChecks::inputs(const Tensors& list, const at::Tensor& like,
                                    absl::string_view name) const {
  return this->list(list, like, false, name);
}

absl::Status ArgumentChecks::root_list(const Tensors& list, const at::Tensor& like, bool at_root,
                                       bool written, absl::string_view name) const {
  if (at_root) return this->list(list, like, written, name);
  if (list.empty()) return absl::OkStatus();
  return invalid(name, absl::StrCat("has ", list.size(), " tensors; it is given at the root alone"));
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
      absl::StrCat("is ", describe(from_self), " and what this rank sends to itself ", describe(to_self)));
}

absl::Status ArgumentChecks::whole_and_part(const at::Tensor& whole, absl::string_view whole_name,
                                            const at::Tensor& part, absl::string_view part_name) const {
  GRADWIRE_RETURN_IF_ERROR(same_kind(whole, part, whole_name));
  // Behind one another along dimension 0, or stacked.
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

absl::StatusOr<std::vector<int64_t>> ArgumentChecks::splits(const at::Tensor& tensor,
                                                            const std::vector<int64_t>& splits,
                                                            absl::string_view name) const {
  if (tensor.dim() == 0) return invalid(name, "has no dimension that could be split");
  const int64_t length = tensor.size(0);
  if (splits.empty()) {
    if (length % size() == 0) return std::vector<int64_t>(group_.ranks.size(), length / size());
    return invalid(name,
                   absl::StrCat("has ", length, " rows, which are no ", size(), " equal parts: give splits"));
  }
  if (splits.size() != group_.ranks.size()) {
    return invalid(name,
                   absl::StrCat("is given ", splits.size(), " splits; the group has ", size(), " ranks"));
  }
  int64_t left = length;
  for (int64_t split : splits) {
    // Compared one by one: their sum may not fit.
    if (split < 0 || split > left) left = -1;
    if (left < 0) break;
    left -= split;
  }
  if (left == 0) return splits;
  return invalid(name, absl::StrCat("has ", length, " rows; its splits are ", absl::StrJoin(splits, ", ")));
}

absl::Status ArgumentChecks::rows_to_self(const at::Tensor& output, int64_t output_rows,
                                          const at::Tensor& input, int64_t input_rows) const {
  GRADWIRE_RETURN_IF_ERROR(same_kind(output, input, "output"));
  if (output.sizes().slice(1) != input.sizes().slice(1)) {
    return invalid("output", absl::StrCat("is ", describe(output), " and input ", describe(input),
                                          ": they differ in more than dimension 0"));
  }
  if (output_rows == input_rows) return absl::OkStatus();
  return invalid("output", absl::StrCat("expects ", output_rows, " rows of this rank itself, input has ",
                                        input_rows, " for it"));
}

absl::Status ArgumentChecks::tag(int tag) const {
  return tag >= 0 ? absl::OkStatus() : invalid("the tag", absl::StrCat("is ", tag, "; tags are 0 or more"));
}

absl::Status ArgumentChecks::one_per_device(const Tensors& tensors) const {
  if (tensors.empty()) return absl::InvalidArgumentError("no tensors were given");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string entry = absl::StrCat("tensors[", i, "]");
    GRADWIRE_RETURN_IF_ERROR(writable(tensors[i], entry));
    if (!tensors[i].is_cuda())
      return invalid(entry, absl::StrCat("is ", describe(tensors[i]), ", not on a GPU"));
    if (tensors[i].scalar_type() != tensors[0].scalar_type() || tensors[i].sizes() != tensors[0].sizes()) {
      return invalid(entry,
                     absl::StrCat("is ", describe(tensors[i]), " and tensors[0] ", describe(tensors[0])));
    }
    if (!tensors[i].is_contiguous()) return invalid(entry, "is not contiguous");
    for (std::size_t j = 0; j < i; ++j) {
      if (tensors[i].device() != tensors[j].device()) continue;
      return invalid(entry, absl::StrCat("is on ", tensors[i].device().str(), ", as tensors[", j, "] is"));
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
      return invalid(entry,
                     absl::StrCat("has ", lists[i].size(), " tensors where ", expected, " are expected"));
    }
    for (const at::Tensor& tensor : lists[i]) {
      GRADWIRE_RETURN_IF_ERROR(writable(tensor, entry));
      GRADWIRE_RETURN_IF_ERROR(same_kind(tensor, tensors[i], entry));
      if (tensor.sizes() != tensors[i].sizes() || !tensor.is_contiguous()) {
        return invalid(entry, absl::StrCat("holds ", describe(tensor), " where contiguous ones like ",
                                           describe(tensors[i]), " are expected"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
