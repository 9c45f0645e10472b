#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/gateway/testing/client.h"
#include "gradwire/gateway/testing/fixture.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/stream.h"

// Streams of results through the gateway, without tensors.
namespace gradwire::gateway {
namespace {

using testing::call_of;
using testing::Client;
using testing::Context;
using testing::integer;
using testing::OpenedSession;
using testing::text;

// The streams that run.
std::atomic<int> running{0};
struct Running {
  Running() { ++running; }
  ~Running() { --running; }
};

rpc::Stream<int64_t> count(int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield i;
}
GRADWIRE_RPC(count)
rpc::Stream<double> halves(int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield 0.5 * static_cast<double>(i);
}
GRADWIRE_RPC(halves)
rpc::Stream<std::string> tokens(std::string prompt, int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield prompt + std::to_string(i);
}
GRADWIRE_RPC(tokens)
rpc::Stream<int64_t> fails_after(int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield i;
  throw std::runtime_error("no more paper");
}
GRADWIRE_RPC(fails_after)
rpc::Stream<rpc::RRef<std::string>> references(int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield rpc::RRef<std::string>(std::to_string(i));
}
GRADWIRE_RPC(references)

std::atomic<int64_t> produced{0};
rpc::Stream<std::string> endless() {
  const Running here;
  while (true) {
    co_yield std::string(10'000, 'x');
    ++produced;
  }
}
GRADWIRE_RPC(endless)

// Sends one item, and then nothing.
rpc::Stream<int64_t> silent() {
  const Running here;
  co_yield 1;
  const Promise<void> never;
  co_await never.future();
}
GRADWIRE_RPC(silent)

int64_t number() { return 7; }
GRADWIRE_RPC(number)

struct Model {
  explicit Model(int64_t size) : size(size) {}
  rpc::Stream<int64_t> generate(int64_t n) {
    for (int64_t i = 0; i < n; ++i) co_yield size + i;
  }
  int64_t size;
};
GRADWIRE_RPC_CLASS(Model, int64_t)
GRADWIRE_RPC_METHOD(Model, generate)

std::string callee_name(const std::string& last) { return "gradwire::gateway::(anonymous)::" + last; }

using Reader = grpc::ClientReader<v1::DownloadPart>;

class GatewayStream : public testing::GatewayFixture {
 protected:
  GatewayStream() : GatewayFixture(2) { running = 0; }
  ~GatewayStream() override {
    EXPECT_TRUE(eventually([] { return running == 0; }));
  }

  std::unique_ptr<Reader> open(Context& context, const std::string& function,
                               const std::vector<v1::Value>& arguments = {}) {
    return client_->stub->CallStream(&context, call_of("worker1", callee_name(function), arguments));
  }
  // Reads a stream to its end.
  grpc::Status read(const v1::CallRequest& request, std::vector<v1::Value>& items,
                    v1::ErrorDetail* detail = nullptr) {
    Context context;
    const std::unique_ptr<Reader> stream = client_->stub->CallStream(&context, request);
    v1::DownloadPart part;
    while (stream->Read(&part)) {
      EXPECT_EQ(part.response().worker(), "worker1");
      items.push_back(part.response().result());
    }
    grpc::Status status = stream->Finish();
    if (detail != nullptr) *detail = context.detail();
    return status;
  }
};

TEST_F(GatewayStream, ItemsArriveInOrder) {
  start();
  std::vector<v1::Value> items;
  ASSERT_TRUE(read(call_of("worker1", callee_name("count"), {integer(5'000)}), items).ok());
  ASSERT_EQ(items.size(), 5'000u);
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(items[i].integer(), static_cast<int64_t>(i));
  items.clear();
  ASSERT_TRUE(read(call_of("worker1", callee_name("tokens"), {text("a"), integer(3)}), items).ok());
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[2].text(), "a2");
  items.clear();
  ASSERT_TRUE(read(call_of("worker1", callee_name("halves"), {integer(4)}), items).ok());
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(items[3].real(), 1.5);
  items.clear();
  ASSERT_TRUE(read(call_of("worker1", callee_name("count"), {integer(0)}), items).ok());
  EXPECT_TRUE(items.empty());
}

TEST_F(GatewayStream, AMethodStreams) {
  Client& client = start();
  OpenedSession session(client);
  v1::CallRequest request = call_of("worker1", "", {integer(10)});
  request.set_constructor(callee_name("Model"));
  request.set_session(session.id);
  ASSERT_TRUE(client.call(request).ok());
  request = call_of("", "", {integer(2)});
  request.mutable_method()->set_name(callee_name("Model::generate"));
  request.mutable_method()->set_object(client.result.result().handle().id());
  request.set_session(session.id);
  std::vector<v1::Value> items;
  const grpc::Status status = read(request, items);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].integer(), 11);
}

TEST_F(GatewayStream, ReferencesNeedASession) {
  Client& client = start();
  v1::CallRequest request = call_of("worker1", callee_name("references"), {integer(3)});
  std::vector<v1::Value> items;
  EXPECT_EQ(read(request, items).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  OpenedSession session(client);
  request.set_session(session.id);
  items.clear();
  ASSERT_TRUE(read(request, items).ok());
  ASSERT_EQ(items.size(), 3u);
  v1::CallRequest fetch;
  fetch.set_fetch(items[2].handle().id());
  fetch.set_session(session.id);
  ASSERT_TRUE(client.call(fetch).ok());
  EXPECT_EQ(client.result.result().text(), "2");
}

TEST_F(GatewayStream, TheListNamesTheItemsTypeAndNoInternalMethod) {
  Client& client = start();
  v1::ListFunctionsRequest request;
  request.set_worker("worker1");
  request.set_prefix("Stream[");
  v1::ListFunctionsResponse response;
  Context internal;
  ASSERT_TRUE(client.stub->ListFunctions(&internal, request, &response).ok());
  EXPECT_EQ(response.functions_size(), 0);
  request.set_prefix(callee_name("tokens"));
  Context context;
  ASSERT_TRUE(client.stub->ListFunctions(&context, request, &response).ok());
  ASSERT_EQ(response.functions_size(), 1);
  EXPECT_EQ(response.functions(0).signature(), "Stream[str](str,int64)");
  EXPECT_EQ(response.functions(0).result(), "Stream[str]");
  Context third;
  v1::Info info;
  ASSERT_TRUE(client.stub->GetInfo(&third, {}, &info).ok());
  EXPECT_TRUE(info.streams());
}

TEST_F(GatewayStream, OnlyStreamsAreStreamed) {
  Client& client = start();
  std::vector<v1::Value> items;
  v1::ErrorDetail detail;
  grpc::Status status = read(call_of("worker1", callee_name("number"), {}), items, &detail);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("returns int64, not a stream"), std::string::npos)
      << status.error_message();
  EXPECT_EQ(detail.callee(), callee_name("number"));
  status = client.call(call_of("worker1", callee_name("count"), {integer(1)}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("use CallStream"), std::string::npos) << status.error_message();
  v1::CallRequest keeps = call_of("worker1", callee_name("count"), {integer(1)});
  keeps.set_keep_result(true);
  EXPECT_EQ(read(keeps, items).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(read(call_of("worker1", callee_name("missing"), {}), items).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(read(v1::CallRequest(), items).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(read(call_of("worker1", callee_name("count"), {text("many")}), items, &detail).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(detail.argument(), 1u);
  EXPECT_TRUE(items.empty());
}

TEST_F(GatewayStream, AnErrorComesAfterTheItems) {
  start();
  std::vector<v1::Value> items;
  v1::ErrorDetail detail;
  const grpc::Status status =
      read(call_of("worker1", callee_name("fails_after"), {integer(3)}), items, &detail);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNKNOWN);
  EXPECT_NE(status.error_message().find("no more paper"), std::string::npos) << status.error_message();
  EXPECT_EQ(detail.worker(), "worker1");
  EXPECT_EQ(detail.callee(), callee_name("fails_after"));
  EXPECT_EQ(items.size(), 3u);
}

TEST_F(GatewayStream, TheProducerWaitsForTheClient) {
  Client& client = start();
  produced = 0;
  Context context;
  const std::unique_ptr<Reader> slow = open(context, "endless");
  v1::DownloadPart part;
  ASSERT_TRUE(slow->Read(&part));
  // While another client reads 20,000 items, the first one gets none.
  Client other(server_->port());
  Context second;
  const std::unique_ptr<Reader> fast =
      other.stub->CallStream(&second, call_of("worker1", callee_name("count"), {integer(20'000)}));
  int read = 0;
  while (fast->Read(&part)) ++read;
  EXPECT_EQ(read, 20'000);
  // At most the window of the gateway, what gRPC buffers, and what the producer makes ahead: 1,000 items of
  // 10 kB are more than these.
  EXPECT_LT(produced, 1'000);
  EXPECT_EQ(client.call(call_of("worker1", callee_name("number"), {})).error_code(), grpc::StatusCode::OK);
  context.TryCancel();
  EXPECT_EQ(slow->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GatewayStream, CancellationAndTheDeadlineEndTheProducer) {
  start();
  v1::DownloadPart part;
  {
    Context context;
    const std::unique_ptr<Reader> stream = open(context, "silent");
    ASSERT_TRUE(stream->Read(&part));
    EXPECT_EQ(running, 1);
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(eventually([] { return running == 0; }));
  }
  Context context(std::chrono::milliseconds(300));
  const std::unique_ptr<Reader> stream = open(context, "silent");
  while (stream->Read(&part)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([] { return running == 0; }));
  EXPECT_TRUE(eventually([this] { return server_->calls() == 0; }));
}

TEST_F(GatewayStream, ALostClientEndsTheProducer) {
  start();
  v1::DownloadPart part;
  {
    Client lost(server_->port());
    Context context;
    const std::unique_ptr<Reader> stream =
        lost.stub->CallStream(&context, call_of("worker1", callee_name("endless"), {}));
    ASSERT_TRUE(stream->Read(&part));
    EXPECT_EQ(running, 1);
  }
  EXPECT_TRUE(eventually([] { return running == 0; }));
}

TEST_F(GatewayStream, TheDeathOfTheWorkerEndsTheStream) {
  start();
  Context context;
  const std::unique_ptr<Reader> stream = open(context, "silent");
  v1::DownloadPart part;
  ASSERT_TRUE(stream->Read(&part));
  group_.kill(1);
  EXPECT_FALSE(stream->Read(&part));
  // Cancelled, if the dying worker could still say so.
  const grpc::StatusCode code = stream->Finish().error_code();
  EXPECT_TRUE(code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED) << code;
  EXPECT_EQ(context.detail().worker(), "worker1");
}

TEST_F(GatewayStream, AStreamCountsAsACallAndEndsWithTheGateway) {
  Options options;
  options.max_calls_per_client = 1;
  options.drain = absl::Milliseconds(100);
  Client& client = start(options);
  Context context;
  const std::unique_ptr<Reader> stream = open(context, "silent");
  v1::DownloadPart part;
  ASSERT_TRUE(stream->Read(&part));
  EXPECT_EQ(client.call(call_of("worker1", callee_name("number"), {})).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  server_->shutdown();
  EXPECT_FALSE(stream->Read(&part));
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(eventually([] { return running == 0; }));
}

}  // namespace
}  // namespace gradwire::gateway
