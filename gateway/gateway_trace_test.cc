#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/gateway/testing/client.h"
#include "gradwire/gateway/testing/fixture.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/trace/trace_context.h"

// The trace context of W3C in the metadata of a client's RPC goes with the call.
namespace gradwire::gateway {
namespace {

using testing::call_of;
using testing::Context;

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

using Metadata = std::vector<std::pair<std::string, std::string>>;

// The trace of the handler that runs.
std::string trace() {
  const auto current = rpc::TraceContext::current();
  return current == nullptr ? "none"
                            : absl::StrCat(current->trace_id(), " ", current->flags, " ", current->state);
}
GRADWIRE_RPC(trace)
rpc::Stream<std::string> traces() {
  co_yield trace();
  co_yield trace();
}
GRADWIRE_RPC(traces)

std::string full_name(const std::string& last) { return "gradwire::gateway::(anonymous)::" + last; }

class GatewayTrace : public testing::GatewayFixture {
 protected:
  GatewayTrace() : GatewayFixture(2) { start(); }

  static void add(const Metadata& metadata, Context& context) {
    for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
  }
  std::string call(const Metadata& metadata) {
    Context context;
    add(metadata, context);
    v1::CallResponse response;
    EXPECT_TRUE(client_->stub->Call(&context, call_of("worker1", full_name("trace"), {}), &response).ok());
    return response.result().text();
  }
};

TEST_F(GatewayTrace, GoesWithACall) {
  EXPECT_EQ(call({{"traceparent", kParent}}), absl::StrCat(kTraceId, " 1 "));
  EXPECT_EQ(call({{"traceparent", kParent}, {"tracestate", "a=1"}, {"tracestate", "b=2"}}),
            absl::StrCat(kTraceId, " 1 a=1,b=2"));
  EXPECT_EQ(call({}), "none");
}

TEST_F(GatewayTrace, AMalformedOneCountsAsNone) {
  EXPECT_EQ(call({{"traceparent", "00-zz"}}), "none");
  EXPECT_EQ(call({{"traceparent", kParent}, {"traceparent", kParent}}), "none");
  EXPECT_EQ(call({{"tracestate", "a=1"}}), "none");
  EXPECT_EQ(call({{"traceparent", kParent}, {"tracestate", "a=1,a=2"}}), absl::StrCat(kTraceId, " 1 "));
}

TEST_F(GatewayTrace, GoesWithAStream) {
  Context context;
  add({{"traceparent", kParent}}, context);
  const auto stream = client_->stub->CallStream(&context, call_of("worker1", full_name("traces"), {}));
  v1::DownloadPart part;
  int items = 0;
  for (; stream->Read(&part); ++items)
    EXPECT_EQ(part.response().result().text(), absl::StrCat(kTraceId, " 1 "));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(items, 2);
}

TEST_F(GatewayTrace, GoesWithAChunkedCall) {
  Context context;
  add({{"traceparent", kParent}}, context);
  const auto stream = client_->stub->CallChunked(&context);
  v1::UploadPart request;
  *request.mutable_request() = call_of("worker1", full_name("trace"), {});
  ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  v1::DownloadPart part;
  ASSERT_TRUE(stream->Read(&part));
  EXPECT_EQ(part.response().result().text(), absl::StrCat(kTraceId, " 1 "));
  EXPECT_FALSE(stream->Read(&part));
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace gradwire::gateway
