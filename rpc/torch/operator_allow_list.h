#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// Whether other workers may call the operator `name`, "aten::NAME" without an overload.
bool is_allowed_operator(absl::string_view name);

// All allowed names, without "aten::", in ascending order.
std::vector<absl::string_view> allowed_operators();

}  // namespace gradwire::rpc
