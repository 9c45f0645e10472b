#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::rpc {

// The received arguments of a call whose callee has a schema.
struct CallArguments {
  std::vector<c10::IValue> positional;
  std::vector<std::pair<std::string, c10::IValue>> keywords;
};

// TorchScript matches arguments in two attempts.
enum class Conversions {
  // As TorchScript's first attempt: a number fits a Scalar; one number fits a list of fixed length; None and
  // values fit an Optional; tuples and lists fit a list.
  kNone,
  // As TorchScript's second attempt. Also converts: a bool to a number; a tensor that has no dimensions and
  // does not require grad to a number; a str to a Device. Other than TorchScript, it converts an int to a
  // float, because callers in C++ often write 1 for 1.0.
  kImplicit,
};

// Returns the arguments in the order of the schema, with its default values for those that are missing.
// Error: InvalidArgument, which names the argument that does not fit.
absl::StatusOr<std::vector<c10::IValue>> match_arguments(const c10::FunctionSchema& schema,
                                                         const CallArguments& arguments,
                                                         Conversions conversions);

}  // namespace gradwire::rpc
