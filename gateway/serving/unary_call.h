#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "gradwire/gateway/serving/core.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// Serves the RPC Call. The reactor deletes itself.
grpc::ServerUnaryReactor* serve_unary_call(std::shared_ptr<Core> core, grpc::CallbackServerContext* context,
                                           const v1::CallRequest* request, v1::CallResponse* response);

}  // namespace gradwire::gateway
