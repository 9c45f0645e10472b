#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/options.h"

namespace gradwire::rpc {

// Names a backend: a way to make the agent of a process.
enum class BackendType : int {
  // The agent of this library.
  kNative = 0,
  // The same agent, under the name that PyTorch uses.
  kTensorPipe = kNative,
};

// Makes and starts an agent from the arguments of init_rpc. Throws Error.
using BackendFactory = std::function<std::shared_ptr<Agent>(const std::string& name, int rank, int world_size,
                                                            const RpcBackendOptions&)>;

// Registers a backend for init_rpc. Throws InvalidArgument when the name is taken.
BackendType register_backend(const std::string& name, BackendFactory factory);

// Makes this process a worker, and returns when all workers have joined. A rank or world_size of -1 is taken
// from the environment or assigned. The worker's id is its rank. Throws Error as Agent::start does, and
// FailedPrecondition when this process has an agent already.
void init_rpc(const std::string& name, int rank = -1, int world_size = -1, RpcBackendOptions options = {},
              BackendType backend = BackendType::kNative);

// Shuts the agent of init_rpc down. A graceful shutdown continues to serve until every member has called
// shutdown and all calls (including nested calls) and reference messages have ended. In an open group it
// waits for this worker alone, which refuses new calls with Unavailable meanwhile. It fails with
// Unavailable when a member dies, and with DeadlineExceeded after the timeout. Both errors name the worker.
// It fails with Aborted when the group has declared this worker dead, or when the store was started again
// without its keys. A shutdown that is not graceful refuses new calls and fails pending ones.
//
// In both cases all threads have ended when shutdown returns or throws. Later calls fail with
// FailedPrecondition, and init_rpc can be called again. Threads that call shutdown at the same time all get
// the result of the first one. Does nothing when there was never an agent, or when it has ended.
void shutdown(bool graceful = true, absl::Duration timeout = absl::InfiniteDuration());

// Changes the timeout of calls that have none of their own: those that this worker makes from now on. Calls
// in progress keep theirs. InfiniteDuration(): no limit. Throws InvalidArgument for a timeout that is not
// positive, FailedPrecondition without an agent.
void set_rpc_timeout(absl::Duration timeout);
// Returns the timeout of calls that have none of their own, at first RpcBackendOptions::rpc_timeout. Throws
// FailedPrecondition without an agent.
absl::Duration get_rpc_timeout();

// Waits until all workers in `names`, this one among them, have called rpc_barrier with the same names, in
// any order. Empty: all workers of the group, which must not be an open one. The n-th calls of the workers
// with these names belong together, also if some of them failed. `timeout`: nullopt means get_rpc_timeout(),
// InfiniteDuration() no limit. If one worker gives up, the barrier fails for all of them. Throws Error:
//   DeadlineExceeded    with the names of the workers that did not come, or of the one that gave up
//   Unavailable         with the name of a worker that was lost
//   InvalidArgument     this worker is not in `names`, or a name is there twice
//   NotFound            a worker does not exist
//   FailedPrecondition  this process has no agent, or the agent has been shut down
void rpc_barrier(const std::vector<std::string>& names = {},
                 const std::optional<absl::Duration>& timeout = std::nullopt);

// Returns this worker's name and id, from Agent::current(). Throws FailedPrecondition without an agent.
WorkerInfo get_worker_info();
// Returns the worker with this name. Throws Error: NotFound, which lists the names of the group;
// FailedPrecondition as above.
WorkerInfo get_worker_info(const std::string& name);
// Returns all workers of the group; in an open group, those that are alive. Throws FailedPrecondition without
// an agent.
std::vector<WorkerInfo> get_worker_infos();

}  // namespace gradwire::rpc
