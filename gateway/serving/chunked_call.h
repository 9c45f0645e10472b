#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "gradwire/gateway/serving/core.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// Serves the RPC CallChunked. The reactor deletes itself.
grpc::ServerBidiReactor<v1::UploadPart, v1::DownloadPart>* serve_chunked_call(
    std::shared_ptr<Core> core, grpc::CallbackServerContext* context);

}  // namespace gradwire::gateway
