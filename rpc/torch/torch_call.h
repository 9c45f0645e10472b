#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/rpc/callee/server_call.h"
#include "gradwire/rpc/torch/schema_match.h"

namespace gradwire::rpc {

// What serving an operator and serving a TorchScript function have in common.

// The arguments of a call; its target, when it was made through an RRef, comes first. InvalidArgument for
// what no IValue can hold.
absl::StatusOr<CallArguments> torch_arguments(const ServerCall& call);

// Ends the call with what was left on the stack: None, the one value, or a tuple. Plain values are stored as
// their C++ types, so that an RRef<at::Tensor> is one whatever made it.
void finish_torch_call(ServerCall& call, std::vector<c10::IValue> results);

}  // namespace gradwire::rpc
