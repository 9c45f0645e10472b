#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <memory>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/destination.h"

namespace gradwire::rpc {

// Returns a tensor with undefined contents, row-major, on the CPU. When the worker `to` is on the same host,
// the tensor lies in memory that this worker can read. Fill it and move it into a call to that worker: then
// it is sent without a copy.
//
//   at::Tensor batch = empty_for("ps", {1024, 512}, at::kFloat);
//   fill(batch);
//   rpc_sync<&train>("ps", std::move(batch));
//
// Before the first call to the worker has been answered, and between hosts, the memory is ordinary memory. In
// any case the tensor is an ordinary tensor: you may keep it, send it to another worker, or send it without
// moving it. Throws Error: NotFound (unknown worker), InvalidArgument (sizes), ResourceExhausted (no memory),
// FailedPrecondition (no agent).
at::Tensor empty_for(const std::shared_ptr<Agent>& agent, const Destination& to, at::IntArrayRef sizes,
                     at::ScalarType dtype = at::kFloat);
// As above, for the current agent.
at::Tensor empty_for(const Destination& to, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);
// As above, with the dtype and the device of `options`. A tensor on an accelerator is in ordinary memory of
// its device. Moved into a call, it is not copied on its device first (RpcBackendOptions::channels).
// InvalidArgument also for other options than these two.
at::Tensor empty_for(const std::shared_ptr<Agent>& agent, const Destination& to, at::IntArrayRef sizes,
                     const at::TensorOptions& options);
// As above, for the current agent.
at::Tensor empty_for(const Destination& to, at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace gradwire::rpc
