#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>

#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/destination.h"

namespace gradwire::rpc {

// A tensor of undefined contents, row-major, on the cpu, in memory that the worker `to` sees too where it is
// on the same host: fill it and move it into a call to that worker, and it travels without a single copy.
//
//   at::Tensor batch = empty_for("ps", {1024, 512}, at::kFloat);
//   fill(batch);
//   rpc_sync<&train>("ps", std::move(batch));
//
// Until a call to the worker has been answered, and between hosts, it is ordinary memory. It is an ordinary
// tensor in any case: kept, sent elsewhere or sent without being moved, it behaves as any other. Throws
// Error: NotFound (no such worker), InvalidArgument (sizes), ResourceExhausted (no memory),
// FailedPrecondition (no agent).
at::Tensor empty_for(const std::shared_ptr<Agent>& agent, const Destination& to, at::IntArrayRef sizes,
                     at::ScalarType dtype = at::kFloat);
// The same for the agent that runs here.
at::Tensor empty_for(const Destination& to, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);

}  // namespace gradwire::rpc
