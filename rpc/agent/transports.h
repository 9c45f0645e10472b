#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

// Parts that the transports of an agent share, and that the agent reads. With nullptr each transport makes
// its own.
struct TransportParts {
  std::shared_ptr<transport::ShmCounters> shm;
  std::shared_ptr<transport::BufferPool> pool;
};

// Creates the transports of an agent, best first: loopback, for calls to itself, and those that
// `options.transports` names. If it names none, all transports that work on this machine are created.
// `name`: the worker's, which the credentials of `options.security` prove to other workers. `check_shm`
// returns why shared memory does not work on this machine; OK if it does. Then "shm" is left out with a
// warning in the log. Errors: InvalidArgument for an unknown name of a transport; those of
// security::make_credentials(), and of check_own_name() for a certificate that names another worker;
// Unavailable if no transport but loopback is left.
absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> make_transports(
    const RpcBackendOptions& options, const std::string& name,
    const std::shared_ptr<transport::EventLoop>& loop, absl::FunctionRef<absl::Status()> check_shm,
    const TransportParts& parts = {});

}  // namespace gradwire::rpc
