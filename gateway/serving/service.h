#pragma once

#include <memory>
#include <utility>

#include "gradwire/gateway/serving/core.h"
#include "gradwire/proto/gateway.grpc.pb.h"

namespace gradwire::gateway {

// The service of proto/gateway.proto over gRPC's callback interface: no RPC has a thread of its own.
// Thread-safe.
class Service final : public v1::Gateway::CallbackService {
 public:
  explicit Service(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context, const v1::GetInfoRequest* request,
                                    v1::Info* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* ListFunctions(grpc::CallbackServerContext* context,
                                          const v1::ListFunctionsRequest* request,
                                          v1::ListFunctionsResponse* response) override;
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const v1::CallRequest* request,
                                 v1::CallResponse* response) override;
  grpc::ServerBidiReactor<v1::UploadPart, v1::DownloadPart>* CallChunked(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::DownloadPart>* CallStream(grpc::CallbackServerContext* context,
                                                         const v1::CallRequest* request) override;
  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* OpenSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context, const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace gradwire::gateway
