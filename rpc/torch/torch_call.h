#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/torch/schema_match.h"

namespace gradwire::rpc {

// Functions that the handlers of operators and of TorchScript functions share.

// Returns the arguments of a call. If the call was made through an RRef, the RRef's value is the first one.
// Error: InvalidArgument for an argument that an IValue cannot hold.
absl::StatusOr<CallArguments> torch_arguments(const ServerCall& call);

// Ends the call with the values that the callee left on the stack: None, one value, or a tuple. A tensor, a
// number, a bool or a string is stored as its C++ type. So a result that is a tensor always makes an
// RRef<at::Tensor>, whether a C++ function, an operator or TorchScript made it.
void finish_torch_call(ServerCall& call, std::vector<c10::IValue> results);

}  // namespace gradwire::rpc
