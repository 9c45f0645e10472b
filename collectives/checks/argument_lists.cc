// The part of ArgumentChecks that checks lists of tensors.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/checks/argument_messages.h"

namespace gradwire::collectives {

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
