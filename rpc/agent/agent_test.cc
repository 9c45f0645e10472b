#include "gradwire/rpc/calls/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/runtime/runtime.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

int64_t sum(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(sum)

std::string greet(const std::string& name, std::optional<int> times) {
  std::string text;
  for (int i = 0; i < times.value_or(1); ++i) text += "hello " + name + " ";
  return text;
}
GRADWIRE_RPC(greet)

void fail() { throw std::runtime_error("as asked"); }
GRADWIRE_RPC(fail)

TEST(Agent, SyncCallReturnsResult) {
  testing::Group group(2);
  EXPECT_EQ(group[0]->rpc_sync<&sum>("worker1", 2, 3), 5);
  EXPECT_EQ(group[1]->rpc_sync<&greet>("worker0", "you", 2), "hello you hello you ");
}

TEST(Agent, CallToItselfWorks) {
  testing::Group group(1);
  EXPECT_EQ(group[0]->rpc_sync<&sum>("worker0", 2, 3), 5);
}

// Whether a continuation of the future runs on the executor, and not inside of the frame that attaches it.
template <class T>
bool continues_on(const std::shared_ptr<Executor>& executor, const Future<T>& future) {
  Executor* where = nullptr;
  const Future<void> done =
      future.then([&where](const typename Future<T>::Result&) { where = Executor::current(); });
  done.wait();
  return where == executor.get();
}

Future<int> coroutine(Future<int> awaited) { co_return co_await awaited + 1; }

TEST(Agent, FuturesOfTheProgramContinueOnItsExecutor) {
  testing::Group group(1);
  const std::shared_ptr<Executor> executor = group[0]->executor();
  AgentGuard guard(group[0]);
  EXPECT_TRUE(continues_on(executor, Future<int>(Future<int>::Result(1))));
  EXPECT_TRUE(continues_on(executor, coroutine(Future<int>(Future<int>::Result(1)))));
  EXPECT_TRUE(continues_on(executor, collect(std::vector<Future<int>>())));
  EXPECT_TRUE(continues_on(executor, RRef<int64_t>(1).confirmed()));
  Promise<int> own;
  own.set_value(1);
  EXPECT_TRUE(continues_on(executor, own.future()));
  // The same for a callback that is attached before the promise is completed.
  Promise<int> later;
  Executor* where = nullptr;
  const Future<void> done = later.future().then([&where](int) { where = Executor::current(); });
  later.set_value(1);
  done.wait();
  EXPECT_EQ(where, executor.get());
}

TEST(Agent, HandlerExceptionNamesWorkerAndFunction) {
  testing::Group group(2);
  try {
    group[0]->rpc_sync<&fail>("worker1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnknown);
    EXPECT_EQ(error.worker(), "worker1");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("as asked"));
  }
}

struct Counter {
  explicit Counter(int64_t start) : value(start) {}
  int64_t increment(int64_t by) { return value += by; }
  int64_t value;
};
GRADWIRE_RPC_CLASS(Counter, int64_t)
GRADWIRE_RPC_METHOD(Counter, increment)

TEST(Agent, RemoteObjectServesMethods) {
  testing::Group group(2);
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1", 10);
    EXPECT_EQ(counter.rpc_sync<&Counter::increment>(5), 15);
    EXPECT_EQ(counter.owner_name(), "worker1");
    EXPECT_FALSE(counter.is_owner());
    RRef<int64_t> result = counter.remote<&Counter::increment>(1);
    EXPECT_EQ(result.to_here(), 16);
  }
  group.expect_empty();
}

// A handler may pass on the error that its nested call gets when its worker shuts down. It must not say to
// the caller that the caller's own agent has shut down.
TEST(AgentRuntime, ErrorOfItsOwnShutdownIsUnavailableForOtherCallers) {
  AgentRuntime runtime;
  runtime.self = {"self", 0, 1};
  const Worker other = {"other", 1, 2};
  const absl::Status mine = absl::FailedPreconditionError("the handler's own error");
  EXPECT_EQ(runtime.for_caller(other, mine), mine);
  runtime.closed = true;
  EXPECT_EQ(runtime.for_caller(other, mine), mine);
  const absl::Status closed =
      with_worker(with_context(runtime.accepts_calls(), "a nested call"), runtime.self.name);
  EXPECT_EQ(runtime.for_caller(runtime.self, closed), closed);
  const absl::Status seen = runtime.for_caller(other, closed);
  EXPECT_EQ(seen.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen.message(), closed.message());
  EXPECT_EQ(worker_of(seen), "self");
}

}  // namespace
}  // namespace gradwire::rpc
