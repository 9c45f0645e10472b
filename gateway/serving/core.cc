#include "gradwire/gateway/serving/core.h"

#include <utility>

#include "gradwire/base/clock.h"

namespace gradwire::gateway {
namespace {

Quotas::Bounds bounds_of(const Options& options) {
  Quotas::Bounds bounds;
  bounds.calls_per_client = options.max_calls_per_client;
  bounds.calls = options.max_calls;
  bounds.sessions_per_client = options.max_sessions_per_client;
  bounds.sessions = options.max_sessions;
  bounds.bytes_per_call = options.max_call_bytes;
  bounds.bytes_per_client = options.max_bytes_per_client;
  bounds.bytes = options.max_bytes;
  return bounds;
}

absl::Time now() { return Clock::system().now(); }

}  // namespace

Core::Core(std::shared_ptr<rpc::Agent> worker, Options gateway_options)
    : agent(std::move(worker)),
      options(std::move(gateway_options)),
      access(options),
      limits(bounds_of(options)),
      sessions(options.max_objects_per_session, options.session_idle, &now),
      stalls(options.stall_timeout, &now),
      directory(std::make_shared<CalleeDirectory>(agent)) {}

}  // namespace gradwire::gateway
