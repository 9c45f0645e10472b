#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "gradwire/gateway/serving/core.h"
#include "gradwire/gateway/values/tensors.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// Divides the chunked tensors of one response into messages (proto/gateway.proto, "Chunks").
class Download {
 public:
  // The tensors of the next response. REQUIRES: those of the last one were sent.
  void start(std::vector<TensorBytes> tensors);
  // Fills `part` with the next chunk, and returns whether it did: false after the last one. The memory of a
  // tensor that was sent is released.
  bool next(v1::DownloadPart& part);

 private:
  std::vector<TensorBytes> tensors_;
  std::size_t current_ = 0;
  std::size_t offset_ = 0;
};

// Serves the RPC CallChunked. The reactor deletes itself.
grpc::ServerBidiReactor<v1::UploadPart, v1::DownloadPart>* serve_chunked_call(
    std::shared_ptr<Core> core, grpc::CallbackServerContext* context);

}  // namespace gradwire::gateway
