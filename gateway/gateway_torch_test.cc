#include <ATen/ATen.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/gateway/server.h"
#include "gradwire/gateway/testing/client.h"
#include "gradwire/gateway/testing/fixture.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/stream.h"

// Tensors, chunks and operators through the gateway.
namespace gradwire::gateway {
namespace {

using testing::call_of;
using testing::Client;
using testing::Context;
using testing::handle;
using testing::integer;
using testing::OpenedSession;
using testing::real;

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)
std::vector<at::Tensor> both(const at::Tensor& a, const at::Tensor& b) { return {a, b.t(), at::ones({})}; }
GRADWIRE_RPC(both)
at::Tensor zeros(int64_t n) { return at::zeros({n}, at::kByte); }
GRADWIRE_RPC(zeros)

rpc::Stream<at::Tensor> large_rows(int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield at::full({3'000'000}, i, at::kByte);
}
GRADWIRE_RPC(large_rows)

rpc::Stream<at::Tensor> rows(at::Tensor table) {
  for (int64_t i = 0; i < table.size(0); ++i) co_yield table[i];
}
GRADWIRE_RPC(rows)

constexpr std::size_t kChunk = std::size_t{1} << 20;

std::string name(const std::string& last) { return "gradwire::gateway::(anonymous)::" + last; }

v1::Value tensor_value(v1::DType dtype, std::vector<int64_t> shape, std::string data) {
  v1::Value value;
  v1::Tensor& tensor = *value.mutable_tensor();
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  tensor.set_data(std::move(data));
  return value;
}
v1::Value floats(std::vector<int64_t> shape, const std::vector<float>& data) {
  return tensor_value(v1::DTYPE_FLOAT32, std::move(shape),
                      std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float)));
}
v1::Value chunked(std::vector<int64_t> shape) {
  v1::Value value = floats(std::move(shape), {});
  value.mutable_tensor()->set_chunked(true);
  return value;
}
std::vector<float> floats_of(const std::string& bytes) {
  std::vector<float> data(bytes.size() / sizeof(float));
  std::memcpy(data.data(), bytes.data(), data.size() * sizeof(float));
  return data;
}

// A call with chunks: sends `parts`, and collects the bytes of the result's chunked tensors.
struct Chunked {
  grpc::Status status;
  v1::ErrorDetail detail;
  v1::CallResponse response;
  std::vector<std::string> tensors;

  Chunked(Client& client, const v1::CallRequest& request, const std::vector<std::string>& uploads) {
    Context context;
    auto stream = client.stub->CallChunked(&context);
    v1::UploadPart part;
    *part.mutable_request() = request;
    stream->Write(part);
    for (std::size_t i = 0; i < uploads.size(); ++i) {
      for (std::size_t offset = 0; offset < uploads[i].size(); offset += kChunk) {
        part.mutable_chunk()->set_tensor(static_cast<uint32_t>(i));
        part.mutable_chunk()->set_offset(offset);
        part.mutable_chunk()->set_data(uploads[i].substr(offset, kChunk));
        stream->Write(part);
      }
    }
    stream->WritesDone();
    v1::DownloadPart down;
    while (stream->Read(&down)) {
      if (down.has_response()) {
        response = down.response();
        continue;
      }
      const v1::Chunk& chunk = down.chunk();
      tensors.resize(std::max<std::size_t>(tensors.size(), chunk.tensor() + 1));
      EXPECT_EQ(chunk.offset(), tensors[chunk.tensor()].size());
      EXPECT_LE(chunk.data().size(), kChunk);
      tensors[chunk.tensor()] += chunk.data();
    }
    status = stream->Finish();
    detail = context.detail();
  }
};

class GatewayTorch : public testing::GatewayFixture {
 protected:
  GatewayTorch() : GatewayFixture(2) {}
};

TEST_F(GatewayTorch, SmallTensorsTravelInOneMessage) {
  Client& client = start();
  ASSERT_TRUE(client.call(call_of("worker1", name("scale"), {floats({2, 2}, {1, 2, 3, 4}), real(2)})).ok());
  const v1::Tensor& result = client.result.result().tensor();
  EXPECT_EQ(result.dtype(), v1::DTYPE_FLOAT32);
  EXPECT_EQ(result.shape_size(), 2);
  EXPECT_EQ(floats_of(result.data()), (std::vector<float>{2, 4, 6, 8}));
}

TEST_F(GatewayTorch, LargeTensorsTravelInChunks) {
  Client& client = start();
  std::vector<float> a(3'000'000);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 1000);
  std::vector<float> b(600 * 700);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
  const auto bytes = [](const std::vector<float>& data) {
    return std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
  };
  const Chunked call(client, call_of("worker1", name("both"), {chunked({3'000'000}), chunked({600, 700})}),
                     {bytes(a), bytes(b)});
  ASSERT_TRUE(call.status.ok()) << call.status.error_message();
  const v1::List& list = call.response.result().list();
  ASSERT_EQ(list.values_size(), 3);
  EXPECT_TRUE(list.values(0).tensor().chunked());
  EXPECT_EQ(list.values(1).tensor().shape(0), 700);
  EXPECT_EQ(floats_of(list.values(2).tensor().data()), std::vector<float>{1})
      << "a small one stays in the response";
  ASSERT_EQ(call.tensors.size(), 2u);
  EXPECT_EQ(call.tensors[0], bytes(a));
  const std::vector<float> transposed = floats_of(call.tensors[1]);
  ASSERT_EQ(transposed.size(), b.size());
  EXPECT_EQ(transposed[1], b[700]);
  EXPECT_EQ(transposed[600], b[1]);
}

TEST_F(GatewayTorch, ChunksOutOfPlaceEndTheCall) {
  Client& client = start();
  const v1::CallRequest request = call_of("worker1", name("scale"), {chunked({256, 1024}), real(2)});
  const auto end_of = [&](uint32_t tensor, uint64_t offset, std::size_t size) {
    Context context;
    auto stream = client.stub->CallChunked(&context);
    v1::UploadPart part;
    *part.mutable_request() = request;
    stream->Write(part);
    part.mutable_chunk()->set_tensor(tensor);
    part.mutable_chunk()->set_offset(offset);
    part.mutable_chunk()->set_data(std::string(size, '\0'));
    stream->Write(part);
    stream->WritesDone();
    v1::DownloadPart down;
    while (stream->Read(&down)) {
    }
    return stream->Finish().error_code();
  };
  EXPECT_EQ(end_of(0, 0, kChunk), grpc::StatusCode::OK);
  EXPECT_EQ(end_of(0, 0, kChunk - 1), grpc::StatusCode::INVALID_ARGUMENT) << "bytes are missing";
  EXPECT_EQ(end_of(0, 0, kChunk + 1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of(0, 0, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of(1, 0, kChunk), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of(0, 1, kChunk), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of(0xffffffff, ~uint64_t{0}, 1), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GatewayTorch, AbsurdTensorsAreRefusedBeforeMemoryIsAllocated) {
  Options options;
  options.max_call_bytes = 1 << 20;
  Client& client = start(options);
  const Chunked large(client, call_of("worker1", name("scale"), {chunked({1 << 20}), real(1)}), {});
  EXPECT_EQ(large.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(large.detail.option(), "max_call_bytes");
  const int64_t huge = int64_t{1} << 62;
  const Chunked overflow(client, call_of("worker1", name("scale"), {chunked({huge, huge}), real(1)}), {});
  EXPECT_EQ(overflow.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.call(call_of("worker1", name("scale"), {floats({huge, huge}, {1}), real(1)})).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.call(call_of("worker1", name("scale"), {chunked({2}), real(1)})).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(
      client.call(call_of("worker1", name("scale"), {tensor_value(v1::DTYPE_BOOL, {1}, "\x02"), real(1)}))
          .error_code(),
      grpc::StatusCode::INVALID_ARGUMENT);
  const Chunked result(client, call_of("worker1", name("zeros"), {integer(2 << 20)}), {});
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(GatewayTorch, AClientThatStopsReadingIsCut) {
  Options options;
  options.stall_timeout = absl::Milliseconds(300);
  Client& client = start(options);
  Context context;
  auto stream = client.stub->CallChunked(&context);
  v1::UploadPart part;
  *part.mutable_request() = call_of("worker1", name("zeros"), {integer(int64_t{200} << 20)});
  stream->Write(part);
  stream->WritesDone();
  // Nothing is read, so gRPC's window fills. The gateway then gives the memory back.
  EXPECT_TRUE(eventually([this] { return server_->calls() == 1; }));
  EXPECT_TRUE(eventually([this] { return server_->calls() == 0; }));
  v1::DownloadPart down;
  while (stream->Read(&down)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  // So is one that stops sending.
  Context second;
  auto silent = client.stub->CallChunked(&second);
  EXPECT_FALSE(silent->Read(&down));
  EXPECT_FALSE(silent->Finish().ok());
}

TEST_F(GatewayTorch, AllowedOperatorsRunWithKeywordsAndHandles) {
  Options options;
  options.allow_operators = {"aten::add", "aten::mul*"};
  Client& client = start(options);
  v1::CallRequest request;
  request.set_operator_("aten::add");
  *request.add_arguments() = floats({2}, {1, 2});
  *request.add_arguments() = floats({2}, {10, 20});
  v1::Keyword& alpha = *request.add_keywords();
  alpha.set_name("alpha");
  *alpha.mutable_value() = integer(2);
  ASSERT_TRUE(client.call(request).ok());
  EXPECT_EQ(floats_of(client.result.result().tensor().data()), (std::vector<float>{21, 42}));

  OpenedSession session(client);
  request.set_session(session.id);
  request.set_worker("worker1");
  request.set_keep_result(true);
  ASSERT_TRUE(client.call(request).ok());
  const std::string kept = client.result.result().handle().id();
  EXPECT_EQ(client.result.result().handle().type(), "Tensor");
  v1::CallRequest in_place;
  in_place.set_operator_("aten::mul_");
  in_place.set_session(session.id);
  *in_place.add_arguments() = handle(kept);
  *in_place.add_arguments() = integer(2);
  ASSERT_TRUE(client.call(in_place).ok());
  v1::CallRequest fetch;
  fetch.set_session(session.id);
  fetch.set_fetch(kept);
  ASSERT_TRUE(client.call(fetch).ok());
  EXPECT_EQ(floats_of(client.result.result().tensor().data()), (std::vector<float>{42, 84}));

  request.set_operator_("aten::sub");
  EXPECT_EQ(client.call(request).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::ListFunctionsRequest list;
  list.set_prefix("aten::");
  Context context;
  v1::ListFunctionsResponse response;
  ASSERT_TRUE(client.stub->ListFunctions(&context, list, &response).ok());
  EXPECT_EQ(response.functions(0).name(), "aten::add");
  EXPECT_EQ(response.functions(0).kind(), v1::FUNCTION_KIND_OPERATOR);
}

TEST_F(GatewayTorch, TensorsOfAStreamTravelInChunks) {
  Client& client = start();
  Context context;
  auto stream = client.stub->CallStream(
      &context, call_of("worker1", name("rows"), {floats({3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})}));
  v1::DownloadPart part;
  for (int row = 0; row < 3; ++row) {
    ASSERT_TRUE(stream->Read(&part));
    const v1::Tensor& tensor = part.response().result().tensor();
    EXPECT_FALSE(tensor.chunked());
    EXPECT_EQ(floats_of(tensor.data())[0], static_cast<float>(4 * row));
  }
  EXPECT_FALSE(stream->Read(&part));
  EXPECT_TRUE(stream->Finish().ok());
  // Each item has its own numbers of chunked tensors.
  Context second;
  v1::CallRequest request = call_of("worker1", name("large_rows"), {integer(3)});
  stream = client.stub->CallStream(&second, request);
  for (int row = 0; row < 3; ++row) {
    ASSERT_TRUE(stream->Read(&part));
    ASSERT_TRUE(part.response().result().tensor().chunked());
    std::size_t size = 0;
    while (size < 3'000'000) {
      ASSERT_TRUE(stream->Read(&part));
      EXPECT_EQ(part.chunk().tensor(), 0u);
      EXPECT_EQ(part.chunk().offset(), size);
      EXPECT_EQ(part.chunk().data()[0], static_cast<char>(row));
      size += part.chunk().data().size();
    }
    EXPECT_EQ(size, 3'000'000u);
  }
  EXPECT_FALSE(stream->Read(&part));
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace gradwire::gateway
