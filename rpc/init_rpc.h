#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/options.h"

namespace gradwire::rpc {

// A way of making the agent of a process.
enum class BackendType : int {
  // This library's own.
  kNative = 0,
  // The same, under the name that PyTorch's programs use.
  kTensorPipe = kNative,
};

// Makes and starts the agent for init_rpc, whose arguments it gets; throws Error.
using BackendFactory = std::function<std::shared_ptr<Agent>(const std::string& name, int rank, int world_size,
                                                            const RpcBackendOptions&)>;

// Adds a way, for init_rpc to use. InvalidArgument when the name is taken.
BackendType register_backend(const std::string& name, BackendFactory factory);

// Makes this process a worker; returns when all have joined. rank and world_size: -1, from the environment or
// assigned. The worker's id is its rank. Throws Error: as Agent::start; FailedPrecondition when there is an
// agent already.
void init_rpc(const std::string& name, int rank = -1, int world_size = -1, RpcBackendOptions options = {},
              BackendType backend = BackendType::kNative);

// Graceful: serves on until every member has called it and all calls in flight, nested ones too, and
// reference messages are done. A member's death ends it with Unavailable, the timeout with
// DeadlineExceeded, both naming who. Not graceful: refuses new calls, fails pending ones. Either
// way all threads have ended when it returns or throws, calls fail with FailedPrecondition from then on, and
// init_rpc works again. Does nothing without an agent.
void shutdown(bool graceful = true, absl::Duration timeout = absl::InfiniteDuration());

// This worker: of Agent::current(). Throws Error, FailedPrecondition, where there is no agent.
WorkerInfo get_worker_info();
// The worker with that name. Throws Error: NotFound, which lists the names there are; FailedPrecondition as
// above.
WorkerInfo get_worker_info(const std::string& name);
// All workers of the group; of an open group those that live. Throws Error, FailedPrecondition, without an
// agent.
std::vector<WorkerInfo> get_worker_infos();

}  // namespace gradwire::rpc
