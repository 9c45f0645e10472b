// Malformed messages of clients that have not shown a token.
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "gradwire/gateway/testing/client.h"
#include "gradwire/gateway/testing/fixture.h"
#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

// Sends these bytes as the only message of an RPC, and returns its status.
grpc::Status send_bytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        const std::string& bytes) {
  grpc::GenericStub stub(channel);
  testing::Context context;
  grpc::CompletionQueue queue;
  grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

class GatewayLog : public testing::GatewayFixture {
 protected:
  GatewayLog() : GatewayFixture(1) {}
};

// Field 1, or another one with a text, that is not UTF-8.
TEST_F(GatewayLog, SaysNothingAboutTextsThatAreNotUtf8) {
  testing::Client& client = start({.token = "a token that these clients do not have"});
  ::testing::internal::CaptureStderr();
  for (const char* method :
       {"/gradwire.gateway.v1.Gateway/Call", "/gradwire.gateway.v1.Gateway/CallStream",
        "/gradwire.gateway.v1.Gateway/ListFunctions", "/gradwire.gateway.v1.Gateway/Release",
        "/gradwire.gateway.v1.Gateway/CallChunked", "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    for (const std::string& bytes : {std::string("\x0a\x02\xff\xfe"), std::string("\x12\x02\xff\xfe"),
                                     std::string("\x0a\x04\x0a\x02\xff\xfe"), std::string("\x0a\x05x")}) {
      (void)send_bytes(client.channel, method, bytes);
    }
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// The gateway prevents these lines.
TEST(ProtobufLog, HasALineForEachTextThatIsNotUtf8) {
  ::testing::internal::CaptureStderr();
  v1::CallRequest request;
  EXPECT_FALSE(request.ParseFromString("\x0a\x02\xff\xfe"));
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("UTF-8"), std::string::npos);
}

}  // namespace
}  // namespace gradwire::gateway
