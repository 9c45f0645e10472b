#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

// Helpers for the error messages of ArgumentChecks.
namespace gradwire::collectives::argument_checks_internal {

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

}  // namespace gradwire::collectives::argument_checks_internal
