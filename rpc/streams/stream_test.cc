#include "gradwire/rpc/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

Stream<int64_t> count(int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield i;
}
GRADWIRE_RPC(count)

Stream<std::string> tokens(const std::string& prompt, int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield prompt + std::to_string(i);
}
GRADWIRE_RPC(tokens)

int64_t twice(int64_t n) { return 2 * n; }
GRADWIRE_RPC(twice)

Stream<int64_t> twice_all(int64_t n) {
  const std::string self = Agent::current()->get_worker_info().name;
  for (int64_t i = 0; i < n; ++i) co_yield co_await rpc_async<&twice>(self, i);
}
GRADWIRE_RPC(twice_all)

// Throws at the item with number `at`; before the first item if it is 0.
Stream<int64_t> fails_at(int64_t at) {
  for (int64_t i = 0;; ++i) {
    if (i == at) throw std::runtime_error("no more paper");
    co_yield i;
  }
}
GRADWIRE_RPC(fails_at)

Stream<int64_t> refuses() {
  throw Error(absl::ResourceExhaustedError("no tokens left"));
  co_yield 0;
}
GRADWIRE_RPC(refuses)

Stream<int64_t> written(int64_t n, bool fails) {
  auto [stream, writer] = make_stream<int64_t>();
  for (int64_t i = 0; i < n; ++i) writer.write(i);
  writer.finish(fails ? absl::DataLossError("the disk is broken") : absl::OkStatus());
  return std::move(stream);
}
GRADWIRE_RPC(written)

Stream<int64_t> dropped_writer() {
  auto [stream, writer] = make_stream<int64_t>();
  writer.write(1);
  return std::move(stream);
}
GRADWIRE_RPC(dropped_writer)

struct Model {
  explicit Model(int64_t first) : first(first) {}
  Stream<int64_t> generate(int64_t n) {
    for (int64_t i = 0; i < n; ++i) co_yield first + i;
  }
  const int64_t first;
};
GRADWIRE_RPC_CLASS(Model, int64_t)
GRADWIRE_RPC_METHOD(Model, generate)

template <class T>
std::vector<T> all(RemoteStream<T>& stream) {
  std::vector<T> items;
  while (std::optional<T> item = stream.next()) items.push_back(*std::move(item));
  return items;
}

std::vector<int64_t> numbers(int64_t n) {
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < n; ++i) expected.push_back(i);
  return expected;
}

RpcBackendOptions over(const std::string& transport) {
  RpcBackendOptions options;
  options.transports = {transport};
  return options;
}

class StreamOver : public ::testing::TestWithParam<std::string> {
 protected:
  StreamOver() : group(2, GetParam() == "loopback" ? RpcBackendOptions() : over(GetParam())) {}
  std::string to() const { return GetParam() == "loopback" ? "worker0" : "worker1"; }
  testing::Group group;
};
INSTANTIATE_TEST_SUITE_P(Transports, StreamOver, ::testing::Values("loopback", "shm", "tcp"),
                         [](const auto& each) { return each.param; });

TEST_P(StreamOver, ItemsArriveInOrder) {
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&count>(to(), 20'000);
  EXPECT_EQ(all(stream), numbers(20'000));
  // The end stays.
  EXPECT_EQ(stream.next(), std::nullopt);
}

TEST_P(StreamOver, EmptyStreamEndsAtOnce) {
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&count>(to(), 0);
  EXPECT_EQ(stream.next(), std::nullopt);
}

TEST_P(StreamOver, RangeForReadsTheStream) {
  RemoteStream<std::string> stream = group[0]->rpc_stream<&tokens>(to(), "token ", 300);
  int64_t n = 0;
  for (std::string& token : stream) EXPECT_EQ(token, "token " + std::to_string(n++));
  EXPECT_EQ(n, 300);
}

TEST_P(StreamOver, LargeItemsArriveWhole) {
  RemoteStream<std::string> stream = group[0]->rpc_stream<&tokens>(to(), std::string(3 << 20, 'x'), 20);
  int64_t n = 0;
  for (const std::string& token : stream) {
    EXPECT_EQ(token.size(), (3u << 20) + std::to_string(n).size());
    EXPECT_EQ(token.substr(3 << 20), std::to_string(n++));
  }
  EXPECT_EQ(n, 20);
}

TEST_P(StreamOver, WindowOfOneItemStillDelivers) {
  RemoteStream<int64_t> stream =
      group[0]->rpc_stream<&count>(StreamDestination(to(), {.window_items = 1}), 200);
  EXPECT_EQ(all(stream), numbers(200));
}

TEST_P(StreamOver, CoroutineAwaitsFutures) {
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&twice_all>(to(), 200);
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(stream.next(), 2 * i);
  EXPECT_EQ(stream.next(), std::nullopt);
}

TEST_P(StreamOver, ErrorComesAfterTheItemsBeforeIt) {
  for (const int64_t at : {0, 1, 5, 3'000}) {
    RemoteStream<int64_t> stream = group[0]->rpc_stream<&fails_at>(to(), at);
    for (int64_t i = 0; i < at; ++i) ASSERT_EQ(stream.next(), i);
    for (int again = 0; again < 2; ++again) {
      const absl::Status status = status_of([&] { stream.next(); });
      EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
      EXPECT_THAT(std::string(status.message()), HasSubstr("no more paper"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("fails_at"));
      EXPECT_EQ(worker_of(status), to());
    }
  }
}

TEST_P(StreamOver, WriterInsideTheHandler) {
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&written>(to(), 1'000, false);
  EXPECT_EQ(all(stream), numbers(1'000));
  RemoteStream<int64_t> broken = group[0]->rpc_stream<&written>(to(), 3, true);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(broken.next(), i);
  EXPECT_EQ(status_of([&] { broken.next(); }).code(), absl::StatusCode::kDataLoss);
}

TEST_P(StreamOver, SeveralStreamsAtOnce) {
  std::vector<RemoteStream<int64_t>> streams;
  for (int i = 0; i < 16; ++i) streams.push_back(group[0]->rpc_stream<&count>(to(), 2'000));
  std::vector<std::thread> readers;
  std::atomic<int> right{0};
  for (RemoteStream<int64_t>& stream : streams) {
    readers.emplace_back([&stream, &right] { right += all(stream) == numbers(2'000) ? 1 : 0; });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, 16);
}

TEST(Stream, ErrorKeepsItsCode) {
  testing::Group group(2);
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&refuses>("worker1");
  EXPECT_EQ(status_of([&] { stream.next(); }).code(), absl::StatusCode::kResourceExhausted);
}

TEST(Stream, HandlerThatWritesTooMuchBeforeItsReturnFails) {
  testing::Group group(2);
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&written>("worker1", 1'025, false);
  const absl::Status status = status_of([&] { stream.next(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has not returned it yet"));
}

TEST(Stream, WriterThatIsDroppedEndsWithAborted) {
  testing::Group group(2);
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&dropped_writer>("worker1");
  EXPECT_EQ(stream.next(), 1);
  EXPECT_EQ(status_of([&] { stream.next(); }).code(), absl::StatusCode::kAborted);
}

TEST(Stream, MethodOfARemoteObject) {
  testing::Group group(2);
  {
    RemoteStream<int64_t> stream;
    {
      RRef<Model> model = group[0]->remote<Model>("worker1", 40);
      stream = rpc_stream<&Model::generate>(model, 3);
    }
    // The stream keeps its object.
    EXPECT_EQ(all(stream), (std::vector<int64_t>{40, 41, 42}));
  }
  group.expect_empty();
}

Future<int64_t> sum_of_stream(std::string from, int64_t n) {
  RemoteStream<int64_t> stream = rpc_stream<&count>(from, n);
  int64_t sum = 0;
  while (true) {
    const std::optional<int64_t> item = co_await stream.next_async();
    if (!item) co_return sum;
    sum += *item;
  }
}
GRADWIRE_RPC(sum_of_stream)

TEST(Stream, CoroutineReadsAStream) {
  testing::Group group(3);
  EXPECT_EQ(group[0]->rpc_sync<&sum_of_stream>("worker1", "worker2", 3'000), 3'000 * 2'999 / 2);
}

TEST(Stream, SecondWaitIsRefused) {
  testing::Group group(2);
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&fails_at>("worker1", 1);
  EXPECT_EQ(stream.next(), 0);
  EXPECT_EQ(status_of([&] { stream.next(); }).code(), absl::StatusCode::kUnknown);
}

TEST(Stream, UnregisteredFunctionIsNotFound) {
  testing::Group group(2);
  EXPECT_EQ(status_of([&] { (void)group[0]->rpc_stream<&count>("nobody", 1); }).code(),
            absl::StatusCode::kNotFound);
}

TEST(Stream, SignatureNamesTheItems) {
  EXPECT_EQ(FunctionTraits<decltype(&tokens)>::signature(), "Stream[str](str,int64)");
  const Callee* take = Registry::instance().find(CalleeKind::kMethod, "Stream[str].take");
  ASSERT_NE(take, nullptr);
  EXPECT_EQ(take->signature, "StreamBatch[str](uint64,uint64,uint64)");
  EXPECT_EQ(take->object_type, "Stream[str]");
}

}  // namespace
}  // namespace gradwire::rpc
