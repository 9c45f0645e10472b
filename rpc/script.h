#pragma once

#include <memory>
#include <string>

#include "gradwire/rpc/callee/server_call.h"
#include "gradwire/rpc/op.h"

namespace torch::jit {
struct CompilationUnit;
struct Module;
}  // namespace torch::jit

namespace gradwire::rpc {

// What TorchScript code this process runs for others: nothing but what is registered here, under names of the
// form "package.function". One registry for the process; thread-safe. Code stays registered until the process
// ends.
//
//   register_script("math", "def twice(x: Tensor) -> Tensor:\n  return x + x\n");
//   c10::IValue y = rpc_sync<c10::IValue>("worker1", Script("math.twice"), x);
//
// A name must be one or more parts joined by '.'. All throw Error: FailedPrecondition when the package is
// taken, InvalidArgument when the name or the code is not valid.

// All functions of `unit`.
void register_script(const std::string& package, std::shared_ptr<torch::jit::CompilationUnit> unit);
// All functions that `source` defines.
void register_script(const std::string& package, const std::string& source);
// The methods of a module; calls share its parameters and run concurrently.
void register_script_module(const std::string& name, const torch::jit::Module& module);

// Serves a request for a registered function. Ends the call with NotFound that lists the package,
// InvalidArgument when the arguments do not fit, and Unknown with the message of what the code threw.
// Installed by this target.
void serve_script(const std::shared_ptr<ServerCall>& call);

}  // namespace gradwire::rpc
