#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "gradwire/gateway/serving/core.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// Serves the RPC CallStream. The reactor deletes itself.
grpc::ServerWriteReactor<v1::DownloadPart>* serve_stream_call(std::shared_ptr<Core> core,
                                                              grpc::CallbackServerContext* context,
                                                              const v1::CallRequest* request);

}  // namespace gradwire::gateway
