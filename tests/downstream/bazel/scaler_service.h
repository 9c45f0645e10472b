#pragma once

#include <memory>
#include <string>

#include "gradwire/rpc/rpc.h"
#include "scaler.grpc.pb.h"

namespace downstream {

// Serves the API. A worker of the group does the work.
class ScalerService final : public Scaler::Service {
 public:
  ScalerService(std::shared_ptr<gradwire::rpc::Agent> agent, std::string worker);

  grpc::Status Scale(grpc::ServerContext* context, const ScaleRequest* request, ScaleReply* reply) override;

 private:
  const std::shared_ptr<gradwire::rpc::Agent> agent_;
  const std::string worker_;
};

}  // namespace downstream
