#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "gradwire/gateway/serving/core.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// Serves the RPC OpenSession. The reactor deletes itself.
grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* serve_session(
    std::shared_ptr<Core> core, grpc::CallbackServerContext* context);

}  // namespace gradwire::gateway
