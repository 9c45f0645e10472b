#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "gradwire/rpc/registry/server_call.h"

namespace torch::jit {
struct Function;
struct Resolver;
}  // namespace torch::jit

// RRefs and calls in TorchScript. During static initialisation this target registers RRefs in IValues
// (codec/torch/ivalue_codec.h), and these operators, which libtorch's compiler knows and libtorch's C++
// libraries do not have:
//   RRef[T].to_here(timeout), local_value(), is_owner(), owner_name(), confirmed_by_owner()
//   rpc.rpc_sync, rpc.rpc_async and rpc.remote of a function of the same source
namespace gradwire::rpc {

// Resolves "torch", and "rpc" to the functions above, in TorchScript.
std::shared_ptr<torch::jit::Resolver> script_calls_resolver();

// Runs the function with the arguments in `stack`, and ends the call with its result. A script that waits for
// a future keeps no thread.
void run_script(const std::shared_ptr<ServerCall>& call, torch::jit::Function& function,
                std::vector<c10::IValue> stack);

}  // namespace gradwire::rpc
