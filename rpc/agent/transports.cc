#include "gradwire/rpc/agent/transports.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/transport/loopback/loopback_transport.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/ucx/optional_ucx.h"
#include "gradwire/transport/ucx/ucx_options.h"

namespace gradwire::rpc {

absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> make_transports(
    const RpcBackendOptions& options, const std::string& name,
    const std::shared_ptr<transport::EventLoop>& loop, absl::FunctionRef<absl::Status()> check_shm,
    const TransportParts& parts) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  const AgentHooks hooks = options.hooks == nullptr ? AgentHooks() : *options.hooks;
  GRADWIRE_ASSIGN_OR_RETURN(const security::CredentialsPtr credentials,
                            security::make_credentials(options.security));
  GRADWIRE_RETURN_IF_ERROR(security::check_own_name(*credentials, options.security, name));
  // Loopback comes first, for calls of a worker to itself, and is never left out or wrapped.
  transports.push_back(transport::make_loopback_transport({}, loop));
  const bool chosen = !options.transports.empty();
  absl::Status shm_works;
  for (const std::string& kind : chosen ? options.transports : std::vector<std::string>{"shm", "tcp"}) {
    if (kind == "shm") {
      // The names say what may be used, so with another transport the worker can do without shared memory.
      shm_works = check_shm();
      // A shortage passes. The worker must not do without shared memory until its end.
      if (is_local_shortage(shm_works)) {
        return with_context(shm_works, "cannot set up shared memory between workers");
      }
      if (!shm_works.ok()) {
        log(LogLevel::kWarning,
            "shared memory between workers does not work on this machine: ", shm_works.message());
        continue;
      }
      transport::ShmOptions shm;
      shm.limits = options.limits;
      shm.counters = parts.shm;
      shm.pool = parts.pool;
      shm.allowed_users = options.security.allowed_users;
      transports.push_back(transport::make_shm_transport(std::move(shm), loop));
    } else if (kind == "tcp") {
      transport::TcpOptions tcp;
      tcp.limits = options.limits;
      tcp.pool = parts.pool;
      tcp.credentials = credentials;
      tcp.purpose = "rpc";
      tcp.own_name = name;
      tcp.allowed_users = options.security.allowed_users;
      tcp.look_up = hooks.look_up_host;
      transports.push_back(transport::make_tcp_transport(std::move(tcp), loop));
    } else if (kind == "ucx") {
      transport::UcxOptions ucx;
      ucx.limits = options.limits;
      ucx.credentials = credentials;
      ucx.purpose = "rpc";
      ucx.own_name = name;
      ucx.look_up = hooks.look_up_host;
      GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<transport::Transport> over_ucx,
                                transport::make_ucx_transport_if_built(std::move(ucx), loop));
      transports.push_back(std::move(over_ucx));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown transport \"", kind, "\"; expected \"shm\", \"tcp\" or \"ucx\""));
    }
  }
  if (transports.size() == 1) {
    return with_context(shm_works,
                        "the transport \"shm\" does not work on this machine, and no other one is named in "
                        "RpcBackendOptions::transports; name \"tcp\" too");
  }
  if (hooks.wrap_transport) {
    for (std::size_t i = 1; i < transports.size(); ++i) {
      transports[i] = hooks.wrap_transport(std::move(transports[i]));
    }
  }
  return transports;
}

}  // namespace gradwire::rpc
