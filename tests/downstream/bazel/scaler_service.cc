#include "scaler_service.h"

#include <utility>

#include "functions.h"

namespace downstream {

ScalerService::ScalerService(std::shared_ptr<gradwire::rpc::Agent> agent, std::string worker)
    : agent_(std::move(agent)), worker_(std::move(worker)) {}

grpc::Status ScalerService::Scale(grpc::ServerContext*, const ScaleRequest* request, ScaleReply* reply) try {
  const at::Tensor x = at::tensor(at::ArrayRef<float>(request->values().data(), request->values().size()));
  const at::Tensor y = agent_->rpc_sync<&scale>(worker_, x, request->by()).contiguous();
  reply->mutable_values()->Add(y.data_ptr<float>(), y.data_ptr<float>() + y.numel());
  return grpc::Status::OK;
} catch (const gradwire::Error& error) {
  // The codes of Abseil are those of gRPC.
  return {static_cast<grpc::StatusCode>(error.status().code()), error.what()};
}

}  // namespace downstream
