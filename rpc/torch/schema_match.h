#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::rpc {

// Arguments as they arrived for a callee with a schema.
struct CallArguments {
  std::vector<c10::IValue> positional;
  std::vector<std::pair<std::string, c10::IValue>> keywords;
};

enum class Conversions {
  // As TorchScript's first attempt: a number fits Scalar, one number fits a list of fixed length, None and
  // values fit
  // optionals, tuples and lists fit lists.
  kNone,
  // And its second: bool to numbers, tensors without dimensions (that do not require grad) to numbers, str to
  // Device;
  // here int to float as well, because a caller in C++ writes 1 as easily as 1.0.
  kImplicit,
};

// The arguments in the schema's order, with its defaults filled in. InvalidArgument says what does not fit.
absl::StatusOr<std::vector<c10::IValue>> match_arguments(const c10::FunctionSchema& schema,
                                                         const CallArguments& arguments,
                                                         Conversions conversions);

}  // namespace gradwire::rpc
