#pragma once

#include <memory>
#include <string>

#include "gradwire/rpc/calls/op.h"
#include "gradwire/rpc/registry/server_call.h"

namespace torch::jit {
struct CompilationUnit;
struct Module;
}  // namespace torch::jit

namespace gradwire::rpc {

// The registry of the TorchScript code that this process runs for others, under names of the form
// "package.function". Code that is not registered is never run. There is one registry in a process; it is
// thread-safe. Code stays registered until the process ends.
//
//   register_script("math", "def twice(x: Tensor) -> Tensor:\n  return x + x\n");
//   c10::IValue y = rpc_sync<c10::IValue>("worker1", Script("math.twice"), x);
//
// A name has one or more parts, joined by '.'. All functions throw Error: FailedPrecondition when the package
// is taken, InvalidArgument when the name or the code is not valid.

// Registers all functions of `unit`.
void register_script(const std::string& package, std::shared_ptr<torch::jit::CompilationUnit> unit);
// Registers all functions that `source` defines, and returns their unit, in which they have the names
// "package.function". Scripts may take, return and use references, RRef[T], and make calls:
//
//   def far(worker: str, x: Tensor) -> Tensor:
//     later = rpc.rpc_async(worker, twice, (x,))          # also rpc.rpc_sync and rpc.remote
//     return later.wait()
//   def fetch(rref: RRef[Tensor]) -> Tensor:
//     return rref.to_here()
//
// A call names an earlier function of the same source, which both workers have registered. The arguments are
// a tuple; after it may come a dictionary of keyword arguments and a timeout in seconds, where 0 means no
// limit. A script that waits for a future keeps no thread. To run functions of the unit, include
// <torch/csrc/jit/api/compilation_unit.h>. References have to_here(timeout), local_value(),
// is_owner(), owner_name() and confirmed_by_owner(). The calls are those of the current agent.
std::shared_ptr<torch::jit::CompilationUnit> register_script(const std::string& package,
                                                             const std::string& source);
// Registers the methods of a module. Calls share its parameters and run concurrently.
void register_script_module(const std::string& name, const torch::jit::Module& module);

// Serves a request for a registered function. This target installs it. Ends the call with NotFound, which
// lists the functions of the package; InvalidArgument when the arguments do not match; Unknown, with the
// message of the exception, when the code throws.
void serve_script(const std::shared_ptr<ServerCall>& call);

}  // namespace gradwire::rpc
