#pragma once

#include <memory>
#include <utility>

#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/transport/fault_injection.h"

namespace gradwire::rpc::testing {

// Hooks of an agent: each message that it sends suffers the fault that `decide` returns for its Envelope, a
// Fault or a Fault::Kind. Called from several threads concurrently.
template <class Decide>
std::shared_ptr<const AgentHooks> outgoing_faults(Decide decide) {
  return wrap_transports([decide](std::unique_ptr<transport::Transport> inner) {
    return transport::make_fault_injecting_transport(
        std::move(inner), [decide](transport::Direction direction, const transport::Message& message) {
          proto::Envelope envelope;
          if (direction == transport::Direction::kIncoming || !envelope.ParseFromString(message.header))
            return transport::Fault{};
          return transport::Fault{decide(envelope)};
        });
  });
}

}  // namespace gradwire::rpc::testing
