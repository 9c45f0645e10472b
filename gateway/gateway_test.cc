#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/gateway/server.h"
#include "gradwire/gateway/testing/client.h"
#include "gradwire/gateway/testing/fixture.h"
#include "gradwire/gateway/values/tensors.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"

// A client in C++, a gateway in a worker, and the other workers, in one process, without tensors.
namespace gradwire::gateway {
namespace {

using testing::call_of;
using testing::Client;
using testing::Context;
using testing::handle;
using testing::integer;
using testing::OpenedSession;
using testing::real;
using testing::text;

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)
double half(double x) { return x / 2; }
GRADWIRE_RPC_IDEMPOTENT(half)
std::string where() { return rpc::Agent::current()->get_worker_info().name; }
GRADWIRE_RPC(where)
std::string repeat(const std::string& part, int64_t times) {
  std::string all;
  for (int64_t i = 0; i < times; ++i) all += part;
  return all;
}
GRADWIRE_RPC(repeat)
int64_t broken(int64_t) { throw std::runtime_error("it is broken"); }
GRADWIRE_RPC(broken)
std::map<std::string, std::vector<std::optional<int64_t>>> table(
    std::map<std::string, std::vector<std::optional<int64_t>>> in) {
  return in;
}
GRADWIRE_RPC(table)

std::atomic<int> waiting{0};
std::atomic<int> cancelled{0};
// Runs until its caller has cancelled it.
void wait_for_cancel() {
  ++waiting;
  const auto context = rpc::CallContext::current();
  if (eventually([&] { return context->cancelled(); })) ++cancelled;
}
GRADWIRE_RPC(wait_for_cancel)
int64_t fail_when_cancelled() {
  wait_for_cancel();
  throw Error(absl::CancelledError("the call is not wanted any more"));
}
GRADWIRE_RPC(fail_when_cancelled)

struct Counter {
  explicit Counter(int64_t start) : value(start) { ++alive; }
  ~Counter() { --alive; }
  int64_t add(int64_t n) { return value += n; }
  int64_t value;
  static inline std::atomic<int> alive{0};
};
GRADWIRE_RPC_CLASS(Counter, int64_t)
GRADWIRE_RPC_METHOD(Counter, add)

rpc::RRef<std::string> keep(std::string content) { return rpc::RRef<std::string>(std::move(content)); }
GRADWIRE_RPC(keep)
std::string open(rpc::RRef<std::string> reference) { return reference.to_here(); }
GRADWIRE_RPC(open)

std::string name(const std::string& last) { return "gradwire::gateway::(anonymous)::" + last; }

class GatewayTest : public testing::GatewayFixture {
 protected:
  GatewayTest() : GatewayFixture(3) { waiting = cancelled = 0; }
  ~GatewayTest() override {
    if (server_) server_->shutdown();
    EXPECT_TRUE(eventually([] { return Counter::alive == 0; }));
  }
};

TEST_F(GatewayTest, FunctionsAreListedWithSignaturesAndWorkers) {
  Client& client = start();
  v1::ListFunctionsRequest request;
  request.set_prefix(name(""));
  request.set_page_size(3);
  std::map<std::string, v1::Function> found;
  for (int page = 0; page < 20; ++page) {
    Context context;
    v1::ListFunctionsResponse response;
    ASSERT_TRUE(client.stub->ListFunctions(&context, request, &response).ok());
    EXPECT_LE(response.functions_size(), 3);
    for (const v1::Function& function : response.functions()) {
      EXPECT_TRUE(found.emplace(absl::StrCat(function.kind(), function.name()), function).second);
    }
    if (response.next_page_token().empty()) break;
    request.set_page_token(response.next_page_token());
  }
  const v1::Function& sum = found[absl::StrCat(v1::FUNCTION_KIND_FUNCTION, name("add"))];
  EXPECT_EQ(sum.signature(), "int64(int64,int64)");
  EXPECT_EQ(sum.parameters_size(), 2);
  EXPECT_EQ(sum.result(), "int64");
  EXPECT_EQ(sum.workers_size(), 3);
  EXPECT_TRUE(found[absl::StrCat(v1::FUNCTION_KIND_FUNCTION, name("half"))].idempotent());
  EXPECT_EQ(found[absl::StrCat(v1::FUNCTION_KIND_METHOD, name("Counter::add"))].object_type(),
            name("Counter"));
  EXPECT_EQ(found.count(absl::StrCat(v1::FUNCTION_KIND_CONSTRUCTOR, name("Counter"))), 1u);
  request.set_page_token("\x01garbage");
  Context context;
  v1::ListFunctionsResponse response;
  EXPECT_EQ(client.stub->ListFunctions(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GatewayTest, WorkersAndLimitsAreDescribed) {
  Client& client = start();
  Context context;
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(client.stub->ListWorkers(&context, {}, &workers).ok());
  ASSERT_EQ(workers.workers_size(), 3);
  EXPECT_TRUE(workers.workers(0).gateway());
  EXPECT_EQ(workers.workers(2).name(), "worker2");
  EXPECT_EQ(workers.workers(2).state(), v1::WorkerInfo::STATE_ALIVE);
  Context second;
  v1::Info info;
  ASSERT_TRUE(client.stub->GetInfo(&second, {}, &info).ok());
  EXPECT_EQ(info.max_unary_bytes(), 4'128'768u);
  EXPECT_EQ(info.worker(), "worker0");
  EXPECT_FALSE(info.operators());
}

TEST_F(GatewayTest, ValuesOfEveryKindTravelBothWays) {
  Client& client = start();
  ASSERT_TRUE(client.call(call_of("worker1", name("add"), {integer(2), integer(3)})).ok());
  EXPECT_EQ(client.result.result().integer(), 5);
  EXPECT_EQ(client.result.worker(), "worker1");
  ASSERT_TRUE(client.call(call_of("worker2", name("half"), {integer(3)})).ok());
  EXPECT_EQ(client.result.result().real(), 1.5);
  v1::Value map;
  *map.mutable_map()->add_keys() = text("a");
  v1::List& list = *map.mutable_map()->add_values()->mutable_list();
  *list.add_values() = integer(1);
  list.add_values()->mutable_none();
  ASSERT_TRUE(client.call(call_of("worker1", name("table"), {map})).ok());
  const v1::Map& back = client.result.result().map();
  ASSERT_EQ(back.values_size(), 1);
  EXPECT_EQ(back.values(0).list().values(0).integer(), 1);
  EXPECT_TRUE(back.values(0).list().values(1).has_none());
}

TEST_F(GatewayTest, WithoutANameTheWorkersTakeTurns) {
  Client& client = start();
  std::set<std::string> workers;
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(client.call(call_of("", name("where"), {})).ok());
    EXPECT_EQ(client.result.result().text(), client.result.worker());
    workers.insert(client.result.worker());
  }
  EXPECT_EQ(workers.size(), 3u);
}

TEST_F(GatewayTest, ErrorsHaveTheirCodeAndNameTheirPlace) {
  Client& client = start();
  grpc::Status status = client.call(call_of("worker1", name("broken"), {integer(1)}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNKNOWN);
  EXPECT_NE(status.error_message().find("it is broken"), std::string::npos) << status.error_message();
  EXPECT_EQ(client.detail.worker(), "worker1");
  EXPECT_EQ(client.detail.callee(), name("broken"));

  status = client.call(call_of("worker1", name("add"), {integer(1), text("two")}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.detail.argument(), 2u);
  EXPECT_EQ(client.detail.wanted(), "int64");
  EXPECT_EQ(client.detail.got(), "text");
  EXPECT_EQ(client.call(call_of("worker1", name("add"), {integer(1)})).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.call(call_of("nobody", name("add"), {})).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(client.call(call_of("worker1", name("nothing"), {})).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(client.call(call_of("", name("nothing"), {})).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(client.call(v1::CallRequest()).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::CallRequest op;
  op.set_operator_("aten::add");
  EXPECT_EQ(client.call(op).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(client.call(call_of("worker1", std::string(100'000, 'n'), {})).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(client.detail.callee().size(), 259u);
}

TEST_F(GatewayTest, AResultThatIsTooLargeNamesTheOtherRpc) {
  Client& client = start();
  const grpc::Status status =
      client.call(call_of("worker1", name("repeat"), {text("12345678"), integer(1 << 20)}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(client.detail.limit(), "max_unary_bytes");
}

TEST_F(GatewayTest, TheDeadlineOfTheClientEndsTheCallAtTheWorker) {
  Client& client = start();
  Context context(std::chrono::milliseconds(200));
  v1::CallResponse response;
  EXPECT_EQ(
      client.stub->Call(&context, call_of("worker1", name("wait_for_cancel"), {}), &response).error_code(),
      grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([] { return cancelled == 1; }));
}

TEST_F(GatewayTest, WithoutADeadlineTheTimeoutOfTheGatewayApplies) {
  Options options;
  options.default_timeout = absl::Milliseconds(200);
  Client& client = start(options);
  grpc::ClientContext context;
  v1::CallResponse response;
  EXPECT_EQ(
      client.stub->Call(&context, call_of("worker1", name("wait_for_cancel"), {}), &response).error_code(),
      grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([] { return cancelled == 1; }));
}

TEST_F(GatewayTest, ACancelledCallIsCancelledAtTheWorker) {
  Client& client = start();
  Context context;
  std::thread canceller([&context] {
    EXPECT_TRUE(eventually([] { return waiting == 1; }));
    context.TryCancel();
  });
  v1::CallResponse response;
  EXPECT_EQ(
      client.stub->Call(&context, call_of("worker1", name("wait_for_cancel"), {}), &response).error_code(),
      grpc::StatusCode::CANCELLED);
  canceller.join();
  EXPECT_TRUE(eventually([] { return cancelled == 1; }));
}

TEST_F(GatewayTest, ObjectsLiveAsLongAsTheirSession) {
  Client& client = start();
  OpenedSession session(client);
  ASSERT_EQ(session.id.size(), 16u);
  v1::CallRequest make;
  make.set_worker("worker1");
  make.set_constructor(name("Counter"));
  *make.add_arguments() = integer(10);
  EXPECT_EQ(client.call(make).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  make.set_session(session.id);
  ASSERT_TRUE(client.call(make).ok());
  const v1::Handle counter = client.result.result().handle();
  EXPECT_EQ(counter.type(), name("Counter"));
  EXPECT_EQ(counter.worker(), "worker1");

  v1::CallRequest method;
  method.mutable_method()->set_object(counter.id());
  method.mutable_method()->set_name(name("Counter::add"));
  *method.add_arguments() = integer(5);
  method.set_session(session.id);
  ASSERT_TRUE(client.call(method).ok());
  EXPECT_EQ(client.result.result().integer(), 15);
  method.set_worker("worker2");
  EXPECT_EQ(client.call(method).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  method.set_worker("");

  // A handle means nothing in another session, and nor does a session that does not exist.
  OpenedSession other(client);
  method.set_session(other.id);
  EXPECT_EQ(client.call(method).error_code(), grpc::StatusCode::NOT_FOUND);
  method.set_session(std::string(16, 'x'));
  EXPECT_EQ(client.call(method).error_code(), grpc::StatusCode::NOT_FOUND);

  EXPECT_EQ(Counter::alive, 1);
  EXPECT_TRUE(session.close().ok());
  EXPECT_TRUE(eventually([] { return Counter::alive == 0; }));
  method.set_session(session.id);
  EXPECT_EQ(client.call(method).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GatewayTest, ReferencesBecomeHandles) {
  Client& client = start();
  OpenedSession session(client);
  v1::CallRequest request = call_of("worker1", name("keep"), {text("kept")});
  EXPECT_EQ(client.call(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request.set_session(session.id);
  ASSERT_TRUE(client.call(request).ok());
  const std::string reference = client.result.result().handle().id();
  EXPECT_EQ(client.result.result().handle().type(), "str");

  v1::CallRequest use = call_of("worker2", name("open"), {handle(reference)});
  EXPECT_EQ(client.call(use).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  use.set_session(session.id);
  ASSERT_TRUE(client.call(use).ok());
  EXPECT_EQ(client.result.result().text(), "kept");

  v1::CallRequest fetch;
  fetch.set_session(session.id);
  fetch.set_fetch(reference);
  ASSERT_TRUE(client.call(fetch).ok());
  EXPECT_EQ(client.result.result().text(), "kept");

  v1::CallRequest remote = call_of("worker1", name("add"), {integer(1), integer(1)});
  remote.set_keep_result(true);
  remote.set_session(session.id);
  ASSERT_TRUE(client.call(remote).ok());
  EXPECT_EQ(client.result.result().handle().type(), "int64");
  use.mutable_arguments(0)->mutable_handle()->set_id(client.result.result().handle().id());
  EXPECT_EQ(client.call(use).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  v1::ReleaseRequest release;
  release.set_session(session.id);
  release.add_handles(reference);
  release.add_handles("unknown");
  Context context;
  v1::ReleaseResponse released;
  ASSERT_TRUE(client.stub->Release(&context, release, &released).ok());
  EXPECT_EQ(released.released(), 1u);
  EXPECT_EQ(client.call(fetch).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GatewayTest, ASessionEndsWhenItsClientIsGoneOrIdle) {
  Options options;
  options.session_idle = absl::Milliseconds(300);
  Client& client = start(options);
  v1::CallRequest make;
  make.set_constructor(name("Counter"));
  *make.add_arguments() = integer(0);
  {
    OpenedSession session(client);
    make.set_session(session.id);
    ASSERT_TRUE(client.call(make).ok());
    session.cancel();
    EXPECT_TRUE(eventually([] { return Counter::alive == 0; }));
  }
  OpenedSession idle(client);
  make.set_session(idle.id);
  ASSERT_TRUE(client.call(make).ok());
  EXPECT_EQ(idle.wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([] { return Counter::alive == 0; }));
}

TEST_F(GatewayTest, EachLimitNamesItsOption) {
  Options options;
  options.max_calls_per_client = 1;
  options.max_sessions_per_client = 1;
  options.max_objects_per_session = 1;
  Client& client = start(options);
  OpenedSession session(client);
  Context second;
  auto refused = client.stub->OpenSession(&second);
  v1::SessionEvent event;
  EXPECT_FALSE(refused->Read(&event));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(second.detail().option(), "max_sessions_per_client");

  v1::CallRequest make;
  make.set_constructor(name("Counter"));
  *make.add_arguments() = integer(0);
  make.set_session(session.id);
  ASSERT_TRUE(client.call(make).ok());
  // The permit of a call ends shortly after its answer.
  EXPECT_TRUE(eventually([this] { return server_->calls() == 0; }));
  EXPECT_EQ(client.call(make).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(client.detail.option(), "max_objects_per_session");

  EXPECT_TRUE(eventually([this] { return server_->calls() == 0; }));
  Context blocked;
  std::thread first([&] {
    v1::CallResponse response;
    (void)client.stub->Call(&blocked, call_of("worker1", name("wait_for_cancel"), {}), &response);
  });
  EXPECT_TRUE(eventually([] { return waiting == 1; }));
  EXPECT_EQ(client.call(call_of("worker1", name("where"), {})).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(client.detail.option(), "max_calls_per_client");
  // Another connection has a limit of its own.
  Client other(server_->port());
  EXPECT_TRUE(other.call(call_of("worker1", name("where"), {})).ok());
  blocked.TryCancel();
  first.join();
}

TEST_F(GatewayTest, OnlyTheTokenAndTheAllowListGiveAccess) {
  Options options;
  options.token = "s3cret";
  options.allow = {name("where")};
  Client& client = start(options);
  EXPECT_EQ(client.call(call_of("worker1", name("where"), {})).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  for (const auto& [function, code] : std::map<std::string, grpc::StatusCode>{
           {name("where"), grpc::StatusCode::OK}, {name("add"), grpc::StatusCode::PERMISSION_DENIED}}) {
    Context context;
    context.AddMetadata("authorization", "Bearer s3cret");
    v1::CallResponse response;
    EXPECT_EQ(client.stub->Call(&context, call_of("worker1", function, {}), &response).error_code(), code);
  }
  Context context;
  context.AddMetadata("authorization", "Bearer s3cret");
  v1::ListFunctionsResponse response;
  ASSERT_TRUE(client.stub->ListFunctions(&context, {}, &response).ok());
  ASSERT_EQ(response.functions_size(), 1);
  EXPECT_EQ(response.functions(0).name(), name("where"));
}

TEST_F(GatewayTest, AnOpenAddressAndATakenPortAreRefused) {
  Options options;
  options.address = "0.0.0.0:0";
  EXPECT_THROW(Server(group_[0], options), Error);
  start();
  options.address = absl::StrCat("127.0.0.1:", server_->port());
  try {
    Server second(group_[0], options);
    FAIL() << "two gateways listen on one port";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnavailable);
  }
}

// The umask would let every user connect.
TEST_F(GatewayTest, SocketFileIsForItsOwnerAlone) {
  start();
  // The path of a socket has at most 107 bytes, so it is not in the folder of the test.
  char folder[] = "/tmp/gradwire_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = absl::StrCat(folder, "/gateway.sock");
  Options options;
  options.address = "unix:" + path;
  const mode_t before = ::umask(0);
  {
    Server server(group_[0], options);
    EXPECT_EQ(::umask(before), 0);
    struct stat file = {};
    EXPECT_EQ(::stat(path.c_str(), &file), 0);
    EXPECT_TRUE(S_ISSOCK(file.st_mode));
    EXPECT_EQ(file.st_mode & 0077, 0);
  }
  std::filesystem::remove_all(folder);
}

TEST_F(GatewayTest, ShutdownEndsSessionsAndCancelsCalls) {
  Options options;
  options.drain = absl::Milliseconds(100);
  Client& client = start(options);
  OpenedSession session(client);
  std::thread caller(
      [&client] { EXPECT_FALSE(client.call(call_of("worker1", name("wait_for_cancel"), {})).ok()); });
  EXPECT_TRUE(eventually([] { return waiting == 1; }));
  server_->shutdown();
  EXPECT_EQ(session.wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  caller.join();
  EXPECT_TRUE(eventually([] { return cancelled == 1; }));
}

TEST_F(GatewayTest, MalformedUploadsEndTheirCall) {
  Client& client = start();
  const auto end_of = [&client](const std::vector<v1::UploadPart>& parts) {
    Context context;
    auto stream = client.stub->CallChunked(&context);
    for (const v1::UploadPart& part : parts) stream->Write(part);
    stream->WritesDone();
    v1::DownloadPart part;
    while (stream->Read(&part)) {
    }
    return stream->Finish().error_code();
  };
  v1::UploadPart request;
  *request.mutable_request() = call_of("worker1", name("where"), {});
  v1::UploadPart chunk;
  chunk.mutable_chunk()->set_data("x");
  EXPECT_EQ(end_of({request}), grpc::StatusCode::OK);
  EXPECT_EQ(end_of({}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of({chunk}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of({v1::UploadPart()}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of({request, request}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end_of({request, chunk}), grpc::StatusCode::INVALID_ARGUMENT);
}

// A bridge to tensors for which no memory is left.
class NoMemory final : public TensorBridge {
 public:
  NoMemory() { install_tensor_bridge(this); }
  ~NoMemory() override { install_tensor_bridge(nullptr); }
  absl::StatusOr<transport::Buffer> allocate(std::size_t) override { throw std::bad_alloc(); }
  uint32_t add(TensorBytes, rpc::Encoder&) override { return 0; }
  absl::StatusOr<TensorBytes> read(rpc::TensorSet&, uint32_t) override { throw std::bad_alloc(); }
};

// The exception is thrown in a callback of gRPC.
TEST_F(GatewayTest, AnExceptionEndsItsCallAndNothingElse) {
  const NoMemory bridge;
  Client& client = start();
  Context context;
  auto stream = client.stub->CallChunked(&context);
  v1::UploadPart part;
  *part.mutable_request() = call_of("worker1", name("where"), {});
  v1::Tensor& tensor = *part.mutable_request()->add_arguments()->mutable_tensor();
  tensor.set_dtype(v1::DTYPE_FLOAT32);
  tensor.add_shape(4);
  tensor.set_chunked(true);
  ASSERT_TRUE(stream->Write(part));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(eventually([this] { return server_->calls() == 0; }));
  EXPECT_TRUE(client.call(call_of("worker1", name("where"), {})).ok());
}

TEST_F(GatewayTest, ACancelledUploadEndsItsCall) {
  Client& client = start();
  Context context;
  auto stream = client.stub->CallChunked(&context);
  v1::UploadPart request;
  *request.mutable_request() = call_of("worker1", name("where"), {});
  ASSERT_TRUE(stream->Write(request));
  EXPECT_TRUE(eventually([this] { return server_->calls() == 1; }));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(eventually([this] { return server_->calls() == 0; }));
}

TEST_F(GatewayTest, TheDeathOfAWorkerEndsItsCalls) {
  Client& client = start();
  std::thread caller([&client] {
    // Cancelled, if the dying worker could still say so.
    const grpc::StatusCode code =
        client.call(call_of("worker1", name("fail_when_cancelled"), {})).error_code();
    EXPECT_TRUE(code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED) << code;
    EXPECT_EQ(client.detail.worker(), "worker1");
  });
  EXPECT_TRUE(eventually([] { return waiting == 1; }));
  group_.kill(1);
  caller.join();
  Client second(server_->port());
  EXPECT_TRUE(second.call(call_of("worker2", name("where"), {})).ok());
}

TEST_F(GatewayTest, TextThatIsNotUtf8IsDataOrRefused) {
  Client& client = start();
  v1::Value bytes;
  bytes.set_data("\xff");
  ASSERT_TRUE(client.call(call_of("worker1", name("repeat"), {bytes, integer(2)})).ok());
  EXPECT_EQ(client.result.result().data(), "\xff\xff");
  EXPECT_FALSE(client.call(call_of("worker1", name("repeat"), {text("\xff"), integer(2)})).ok());
  EXPECT_FALSE(client.call(call_of("worker1", "\xff", {})).ok());
  EXPECT_TRUE(client.call(call_of("worker1", name("where"), {})).ok());
}

TEST_F(GatewayTest, ManyClientsCallAtOnce) {
  start();
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, i, &done] {
      Client client(server_->port());
      for (int n = 0; n < 50; ++n) {
        if (client.call(call_of("", name("add"), {integer(i), integer(n)})).ok() &&
            client.result.result().integer() == i + n) {
          ++done;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 400);
}

}  // namespace
}  // namespace gradwire::gateway
