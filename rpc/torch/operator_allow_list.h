#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// Whether a worker runs the operator "aten::NAME" (without overload) for others.
bool is_allowed_operator(absl::string_view name);

// All of them, ascending.
std::vector<absl::string_view> allowed_operators();

}  // namespace gradwire::rpc
