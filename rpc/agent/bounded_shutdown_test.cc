#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "gradwire/base/free_port.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/testing/cut_store.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/transport.h"

// An agent ends in bounded time from every state and leaves no threads or descriptors, also if its start
// failed.
namespace gradwire::rpc {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Runs a start that must fail soon with `code`, and must leave no threads or descriptors.
void expect_failure(absl::StatusCode code, const std::string& text, const std::function<void()>& start) {
  { testing::Group warm_up(1); }
  const transport::ProcessCounts before;
  const absl::Time begin = absl::Now();
  const absl::Status status = status_of(start);
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  EXPECT_EQ(before.left(), "");
}

RpcBackendOptions with_store(absl::Duration join_timeout = absl::Milliseconds(200)) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  options.join_timeout = join_timeout;
  return options;
}

TEST(FailedStart, StoreUnreachable) {
  const int port = free_port();
  RpcBackendOptions options;
  options.init_method = absl::StrCat("tcp://127.0.0.1:", port);
  options.join_timeout = absl::Milliseconds(300);
  expect_failure(absl::StatusCode::kUnavailable, absl::StrCat(port),
                 [&] { Agent::start("second", 1, 2, options); });
}

TEST(FailedStart, PeerNeverJoins) {
  const RpcBackendOptions options = with_store();
  expect_failure(absl::StatusCode::kDeadlineExceeded, "rank 1 of 2",
                 [&] { Agent::start("a", 0, 2, options); });
  // The failed start leaves nothing in the store that keeps another worker from taking its name and rank.
  RpcBackendOptions retry = with_store();
  retry.store = options.store;
  Agent::start("a", 0, 1, retry)->shutdown();
}

TEST(FailedStart, NameTaken) {
  // A long timeout: the refusal must not wait for it.
  const RpcBackendOptions options = with_store(absl::Seconds(60));
  auto first = Agent::start("a", 0, 1, options);
  expect_failure(absl::StatusCode::kInvalidArgument, "taken", [&] { Agent::start("a", 0, 1, options); });
  first->shutdown();
}

// A transport that cannot connect and, unless `listens`, cannot listen.
class Broken : public transport::Transport {
 public:
  Broken(std::unique_ptr<transport::Transport> inner, bool listens)
      : inner_(std::move(inner)), listens_(listens) {}
  std::string name() const override { return inner_->name(); }
  absl::StatusOr<std::string> listen(AcceptHandler accept) override {
    if (!listens_) return absl::ResourceExhaustedError("no port is free");
    return inner_->listen(std::move(accept));
  }
  absl::StatusOr<std::shared_ptr<transport::Connection>> connect(
      const std::string&, std::shared_ptr<transport::ConnectionListener>, absl::Duration) override {
    return absl::UnavailableError("connection refused");
  }
  bool may_reach(const std::string& address) const override { return inner_->may_reach(address); }
  void shutdown() override { inner_->shutdown(); }

 private:
  const std::unique_ptr<transport::Transport> inner_;
  const bool listens_;
};

RpcBackendOptions with_broken(bool listens) {
  RpcBackendOptions options = with_store(absl::Seconds(5));
  options.hooks = wrap_transports([listens](std::unique_ptr<transport::Transport> inner) {
    return std::make_unique<Broken>(std::move(inner), listens);
  });
  return options;
}

TEST(FailedStart, CannotListen) {
  const RpcBackendOptions options = with_broken(/*listens=*/false);
  expect_failure(absl::StatusCode::kResourceExhausted, "no port is free",
                 [&] { Agent::start("a", 0, 1, options); });
  // The failed start leaves nothing in the store that keeps another worker from taking its name and rank.
  RpcBackendOptions retry = with_store();
  retry.store = options.store;
  Agent::start("a", 0, 1, retry)->shutdown();
}

TEST(FailedStart, ConnectAtInitToAWorkerThatCannotBeReached) {
  RpcBackendOptions options = with_broken(/*listens=*/true);
  options.connect_at_init = true;
  const absl::Time begin = absl::Now();
  absl::Status other;
  absl::Status mine;
  std::thread second([&] { other = status_of([&] { Agent::start("b", 1, 2, options); }); });
  mine = status_of([&] { Agent::start("a", 0, 2, options); });
  second.join();
  EXPECT_FALSE(mine.ok());
  EXPECT_FALSE(other.ok());
  EXPECT_THAT(std::string(mine.message()), HasSubstr("connecting to worker \"b\""));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
}

TEST(FailedStart, ConnectAtInitToAWorkerThatHasDied) {
  // The second member ends after it has joined and before the first one connects. The log still names it.
  RpcBackendOptions options = with_store(absl::Seconds(60));
  RpcBackendOptions connecting = options;
  connecting.connect_at_init = true;
  std::shared_ptr<Agent> second;
  std::thread joining([&] {
    second = Agent::start("b", 1, 2, options);
    second->shutdown(/*graceful=*/false);
  });
  const absl::Time begin = absl::Now();
  const absl::Status status = status_of([&] { Agent::start("a", 0, 2, connecting); });
  joining.join();
  // The first member may have connected before the second one ended.
  if (!status.ok()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"b\""));
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
}

Promise<void>& stubborn_started() {
  static auto* promise = new Promise<void>;
  return *promise;
}
std::atomic<bool>& stubborn_may_end() {
  static auto* flag = new std::atomic<bool>(false);
  return *flag;
}
// Ignores its CancellationToken, and returns when the test says so.
int64_t be_stubborn() {
  stubborn_started().set_value();
  while (!stubborn_may_end()) std::this_thread::yield();
  return 1;
}
GRADWIRE_RPC(be_stubborn)

TEST(BoundedShutdown, HandlerThatIgnoresItsTokenIsNamedAndLeftBehind) {
  { testing::Group warm_up(1); }
  const transport::ProcessCounts before;
  for (const bool graceful : {false, true}) {
    RpcBackendOptions options = with_store(absl::Seconds(30));
    options.handler_timeout = absl::Milliseconds(200);
    stubborn_started() = Promise<void>();
    stubborn_may_end() = false;
    auto agent = Agent::start("only", 0, 1, options);
    Future<int64_t> call = agent->rpc_async<&be_stubborn>("only");
    stubborn_started().future().wait();
    const absl::Time begin = absl::Now();
    const absl::Status status = status_of([&] { agent->shutdown(graceful, absl::Milliseconds(100)); });
    EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    if (!graceful) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("be_stubborn"));
    }
    EXPECT_EQ(call.result().status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(status_of([&] { agent->shutdown(false); }).ok());
    agent = nullptr;
    call = Future<int64_t>();
    // When the handler ends, nothing of the agent remains.
    stubborn_may_end() = true;
    EXPECT_EQ(before.left(), "");
  }
}

int64_t give_one() { return 1; }
GRADWIRE_RPC(give_one)

TEST(BoundedShutdown, OnlyRunningHandlersAreNamed) {
  RpcBackendOptions options = with_store(absl::Seconds(30));
  options.handler_timeout = absl::Milliseconds(200);
  options.num_worker_threads = 1;
  options.max_worker_threads = 1;
  stubborn_started() = Promise<void>();
  stubborn_may_end() = false;
  auto agent = Agent::start("only", 0, 1, options);
  Future<int64_t> running = agent->rpc_async<&be_stubborn>("only");
  stubborn_started().future().wait();
  Future<int64_t> queued = agent->rpc_async<&give_one>("only");
  ASSERT_TRUE(eventually([&] { return agent->tables().served_calls == 2; }));
  const absl::Status status = status_of([&] { agent->shutdown(false); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("be_stubborn"));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("give_one")));
  stubborn_may_end() = true;
}

TEST(BoundedShutdown, ContinuationThatDoesNotEndIsNotCalledAHandler) {
  RpcBackendOptions options = with_store(absl::Seconds(30));
  options.handler_timeout = absl::Milliseconds(200);
  stubborn_started() = Promise<void>();
  stubborn_may_end() = false;
  auto agent = Agent::start("only", 0, 1, options);
  Future<int64_t> after = agent->rpc_async<&give_one>("only").then([](int64_t) { return be_stubborn(); });
  stubborn_started().future().wait();
  ASSERT_TRUE(eventually([&] { return agent->tables().served_calls == 0; }));
  const absl::Status status = status_of([&] { agent->shutdown(false); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a continuation or a destructor"));
  stubborn_may_end() = true;
  EXPECT_EQ(after.wait(), 1);
}

TEST(BoundedShutdown, HandlerThatEndsAfterAWhileIsWaitedFor) {
  RpcBackendOptions options = with_store(absl::Seconds(30));
  stubborn_started() = Promise<void>();
  stubborn_may_end() = false;
  auto agent = Agent::start("only", 0, 1, options);
  Future<int64_t> call = agent->rpc_async<&be_stubborn>("only");
  stubborn_started().future().wait();
  std::thread ending([&] {
    EXPECT_FALSE(call.result().ok());
    stubborn_may_end() = true;
  });
  EXPECT_TRUE(status_of([&] { agent->shutdown(false); }).ok());
  ending.join();
}

// Captures what this process writes to its standard error during the lifetime of the object.
class StandardError {
 public:
  StandardError() : path_(::testing::TempDir() + "/standard_error"), saved_(::dup(STDERR_FILENO)) {
    const int file = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    EXPECT_GE(::dup2(file, STDERR_FILENO), 0);
    ::close(file);
  }
  ~StandardError() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
  }
  // Waits until `text` has been written.
  bool contains(const std::string& text) const {
    return eventually([&] { return absl::StrContains(written(), text); }, absl::Seconds(45));
  }
  std::string written() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  const std::string path_;
  const int saved_;
};

Promise<void>& held() {
  static auto* promise = new Promise<void>;
  return *promise;
}
Promise<void>& released() {
  static auto* promise = new Promise<void>;
  return *promise;
}
// Returns when the test releases it, or when the call is cancelled.
int64_t hold_on() {
  held().set_value();
  while (!CallContext::current()->cancelled() && !released().future().wait_for(absl::Milliseconds(5))) {
  }
  return 1;
}
GRADWIRE_RPC(hold_on)

RpcBackendOptions without_call_deadlines() {
  RpcBackendOptions options;
  options.rpc_timeout = absl::InfiniteDuration();
  return options;
}

RpcBackendOptions with_port(int port) {
  RpcBackendOptions options;
  options.init_method = absl::StrCat("tcp://127.0.0.1:", port);
  return options;
}

TEST(Start, ThatWaitsForARankNamesIt) {
  const RpcBackendOptions options = with_port(free_port());
  StandardError standard_error;
  std::shared_ptr<Agent> first, second;
  std::thread waiting([&] { first = Agent::start("first", 0, 2, options); });
  EXPECT_TRUE(standard_error.contains("gradwire[first]: 1 of 2 processes have arrived in the "))
      << standard_error.written();
  EXPECT_TRUE(standard_error.contains("waiting for rank 1 (")) << standard_error.written();
  second = Agent::start("second", 1, 2, options);
  waiting.join();
  EXPECT_TRUE(standard_error.contains("gradwire[first]: all processes have arrived ("))
      << standard_error.written();
}

TEST(Start, ThatWaitsForTheStoreNamesIt) {
  const int port = free_port();
  const RpcBackendOptions options = with_port(port);
  StandardError standard_error;
  std::shared_ptr<Agent> first, second;
  std::thread waiting([&] { second = Agent::start("second", 1, 2, options); });
  EXPECT_TRUE(standard_error.contains("gradwire[second]: waiting for the ")) << standard_error.written();
  EXPECT_TRUE(standard_error.contains(absl::StrCat(port))) << standard_error.written();
  first = Agent::start("first", 0, 2, options);
  waiting.join();
}

TEST(GracefulShutdown, ThatWaitsForAHandlerNamesItItsCallerAndSinceWhen) {
  held() = Promise<void>();
  released() = Promise<void>();
  testing::Group group(2, without_call_deadlines());
  Future<int64_t> call = group[0]->rpc_async<&hold_on>("worker1");
  held().future().wait();
  StandardError standard_error;
  std::thread callee([&] { group[1]->shutdown(); });
  std::thread caller([&] { group[0]->shutdown(); });
  EXPECT_TRUE(standard_error.contains("hold_on\", called by worker \"worker0\" ("))
      << standard_error.written();
  EXPECT_TRUE(standard_error.contains("the answer of worker \"worker1\" to \"")) << standard_error.written();
  EXPECT_TRUE(standard_error.contains("graceful shutdown of worker \"worker1\" waits for: "));
  // The first report comes after ten seconds.
  EXPECT_THAT(standard_error.written(),
              ContainsRegex("hold_on\", called by worker \"worker0\" [(]([1-9][0-9]+|[0-9]+m[0-9]+)s"));
  released().set_value();
  callee.join();
  caller.join();
  EXPECT_EQ(call.wait(), 1);
}

TEST(GracefulShutdown, ThatWaitsForAMemberNamesIt) {
  testing::Group group(2);
  StandardError standard_error;
  std::thread first([&] { group[0]->shutdown(); });
  EXPECT_TRUE(standard_error.contains("worker \"worker1\", which has not called shutdown"))
      << standard_error.written();
  group[1]->shutdown();
  first.join();
}

TEST(GracefulShutdown, ThatWaitsForTheStoreNamesIt) {
  const auto store = std::make_shared<testing::CutStore>(std::make_shared<store::HashStore>());
  RpcBackendOptions options;
  options.store = store;
  auto agent = Agent::start("only", 0, 1, options);
  StandardError standard_error;
  store->silence();
  std::thread ending([&] { agent->shutdown(); });
  EXPECT_TRUE(standard_error.contains("waits for: the answer of the CutStore over HashStore"))
      << standard_error.written();
  store->restore();
  ending.join();
}

TEST(GracefulShutdown, TimeoutNamesTheHandlerAndItsCaller) {
  held() = Promise<void>();
  released() = Promise<void>();
  RpcBackendOptions options = with_store(absl::Seconds(30));
  options.rpc_timeout = absl::InfiniteDuration();
  auto agent = Agent::start("only", 0, 1, options);
  Future<int64_t> call = agent->rpc_async<&hold_on>("only");
  held().future().wait();
  const absl::Status status = status_of([&] { agent->shutdown(true, absl::Milliseconds(100)); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("hold_on\", called by worker \"only\" ("));
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace gradwire::rpc
