// Two agents in one process, and a gRPC server whose handlers call the second one.
#include "scaler_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "gradwire/store/hash_store.h"

namespace downstream {
namespace {

using gradwire::rpc::Agent;

class ScalerServiceTest : public ::testing::Test {
 protected:
  ScalerServiceTest() {
    gradwire::rpc::RpcBackendOptions options;
    options.store = std::make_shared<gradwire::store::HashStore>();
    std::thread other([&] { worker_ = Agent::start("worker", 1, 2, options); });
    front_ = Agent::start("front", 0, 2, options);
    other.join();
  }
  ~ScalerServiceTest() override {
    std::thread other([&] { worker_->shutdown(); });
    front_->shutdown();
    other.join();
  }

  // Calls the API through a server whose handlers call the worker with this name.
  grpc::Status scale_on(const std::string& worker, ScaleReply& reply) {
    ScalerService service(front_, worker);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    const auto stub = Scaler::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
    ScaleRequest request;
    request.add_values(1);
    request.add_values(2.5);
    request.set_by(2);
    grpc::ClientContext context;
    return stub->Scale(&context, request, &reply);
  }

  std::shared_ptr<Agent> front_, worker_;
};

TEST_F(ScalerServiceTest, HandlerCallsAWorker) {
  ScaleReply reply;
  const grpc::Status status = scale_on("worker", reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(reply.values_size(), 2);
  EXPECT_EQ(reply.values(0), 2);
  EXPECT_EQ(reply.values(1), 5);
}

TEST_F(ScalerServiceTest, ErrorOfACallIsTheErrorOfTheApi) {
  ScaleReply reply;
  const grpc::Status status = scale_on("nobody", reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_NE(status.error_message().find("worker \"nobody\" not found"), std::string::npos)
      << status.error_message();
}

}  // namespace
}  // namespace downstream
