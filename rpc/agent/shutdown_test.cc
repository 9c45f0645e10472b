#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/agent/global_agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/process_counts.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

// Calls itself on the other worker `depth` times, each time from a continuation.
Future<int64_t> chain(const std::string& own_name, const std::string& other, int64_t depth) {
  if (depth == 0) co_return 0;
  const int64_t rest = co_await rpc_async<&chain>(other, other, own_name, depth - 1);
  co_return rest + 1;
}
GRADWIRE_RPC(chain)

TEST(Shutdown, ServerServesUntilAllMembersShutDown) {
  testing::Group group(2);
  std::thread server([&] { group[1]->shutdown(); });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(group[0]->rpc_sync<&add>("worker1", i, 1), i + 1);
  group[0]->shutdown();
  server.join();
}

TEST(Shutdown, CallsInFlightAndTheirNestedCallsFinish) {
  testing::Group group(2);
  std::vector<Future<int64_t>> results;
  for (int i = 0; i < 20; ++i)
    results.push_back(group[0]->rpc_async<&chain>("worker1", "worker1", "worker0", 20));
  Future<int64_t> after = results.back().then(
      [agent = group[0]](int64_t depth) { return agent->rpc_sync<&add>("worker1", depth, 1); });
  group.shut_down();
  for (const auto& result : results) EXPECT_EQ(result.wait(), 20);
  EXPECT_EQ(after.wait(), 21);
}

TEST(Shutdown, CallsAfterwardsAreRefused) {
  testing::Group group(2);
  group.shut_down();
  const absl::Status refused = status_of([&] { group[0]->rpc_sync<&add>("worker1", 1, 1); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.ToString(), HasSubstr("worker0"));
  EXPECT_EQ(status_of([&] { group[0]->rpc_sync<&add>("worker0", 1, 1); }).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_of([&] { group[0]->shutdown(); }).code(), absl::StatusCode::kOk);
  EXPECT_EQ(status_of([&] { group[0]->shutdown(false); }).code(), absl::StatusCode::kOk);
}

TEST(Shutdown, NotGracefulFailsPendingCalls) {
  testing::Group group(2);
  Future<int64_t> pending = group[0]->rpc_async<&chain>("worker1", "worker1", "worker0", 1'000'000);
  group.kill(0);
  EXPECT_EQ(pending.result().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Shutdown, FromAHandlerIsRefused) {
  testing::Group group(1);
  Future<int64_t> value = group[0]->rpc_async<&add>("worker0", 1, 1);
  Future<int> code = value.then([agent = group[0].get()](int64_t) {
    return static_cast<int>(status_of([&] { agent->shutdown(); }).code());
  });
  EXPECT_EQ(code.wait(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(group[0]->rpc_sync<&add>("worker0", 1, 1), 2);
}

TEST(Shutdown, DeadMemberIsNamedByAllSoon) {
  testing::Group group(3);
  group.kill(2);
  const absl::Time start = absl::Now();
  absl::Status ended[2];
  std::thread other([&] { ended[1] = status_of([&] { group[1]->shutdown(); }); });
  ended[0] = status_of([&] { group[0]->shutdown(); });
  other.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  for (int rank : {0, 1}) {
    EXPECT_EQ(ended[rank].code(), absl::StatusCode::kUnavailable) << ended[rank];
    EXPECT_THAT(ended[rank].ToString(), HasSubstr("worker2"));
  }
}

TEST(Shutdown, TimeoutNamesTheMemberThatDidNotCall) {
  auto group = std::make_unique<testing::Group>(2);
  const absl::Status waited = status_of([&] { (*group)[0]->shutdown(true, absl::Milliseconds(100)); });
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(waited.ToString(), HasSubstr("worker1"));
  group->kill(1);
}

TEST(Shutdown, NotGracefulEndsAGracefulOneThatWaits) {
  testing::Group group(2);
  std::thread waiting([&] { (void)status_of([&] { group[0]->shutdown(); }).code(); });
  group.kill(0);
  waiting.join();
}

TEST(Shutdown, SameStoreServesOneGroupAfterAnother) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  for (int round = 0; round < 20; ++round) {
    testing::Group group(2 + round % 2, options);
    EXPECT_EQ(group[0]->rpc_sync<&add>("worker1", round, 1), round + 1);
  }
}

TEST(Shutdown, InitRpcWorksAgain) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  for (int round = 0; round < 3; ++round) {
    init_rpc("only", 0, 1, options);
    EXPECT_EQ(rpc_sync<&add>("only", 1, 2), 3);
    EXPECT_EQ(status_of([&] { init_rpc("second", 0, 1, options); }).code(),
              absl::StatusCode::kFailedPrecondition);
    shutdown();
    EXPECT_EQ(status_of([&] { rpc_sync<&add>("only", 1, 2); }).code(), absl::StatusCode::kFailedPrecondition);
  }
}

// It may be the second one of two threads that shut the same agent down.
TEST(Shutdown, LateEndOfOneAgentDoesNotForgetTheNext) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  init_rpc("only", 0, 1, options);
  const std::shared_ptr<Agent> first = global_agent();
  shutdown();
  EXPECT_EQ(global_agent(), nullptr);
  init_rpc("only", 0, 1, options);
  clear_global_agent(first);
  EXPECT_EQ(rpc_sync<&add>("only", 1, 2), 3);
  shutdown();
}

TEST(Shutdown, ThreadsThatCallItTogetherGetTheSameError) {
  auto group = std::make_unique<testing::Group>(2);
  absl::Status results[2];
  std::atomic<int> begun = 0;
  std::vector<std::thread> threads;
  for (absl::Status& result : results) {
    threads.emplace_back([&] {
      ++begun;
      result = status_of([&] { (*group)[0]->shutdown(); });
    });
  }
  ASSERT_TRUE(eventually([&] { return begun == 2; }));
  // The first one fails because of this member, a check of its life later.
  group->kill(1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(results[1], results[0]);
}

struct Owner {
  std::shared_ptr<Agent> agent;
};

TEST(Shutdown, LastOwnerMayBeAHandlersObject) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  auto agent = Agent::start("only", 0, 1, options);
  const std::weak_ptr<Agent> inner = agent->weak_from_this();
  Promise<void> go;
  Future<void> done = agent->rpc_async<&add>("only", 1, 1)
                          .then([shared = std::make_shared<Owner>(Owner{agent}), go](int64_t) {
                            go.future().wait();
                            shared->agent.reset();
                          });
  agent.reset();
  go.set_value();
  done.wait();
  EXPECT_TRUE(eventually([&] { return inner.expired(); }, absl::Seconds(30)));
}

TEST(Shutdown, GlobalAgentStaysIfAHandlerCallsShutdown) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  init_rpc("only", 0, 1, options);
  Future<int> code = rpc_async<&add>("only", 1, 1).then([](int64_t) {
    return static_cast<int>(status_of([] { shutdown(); }).code());
  });
  EXPECT_EQ(code.wait(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(rpc_sync<&add>("only", 1, 1), 2);
  shutdown();
}

TEST(Shutdown, GroupsLeaveNeitherThreadsNorDescriptors) {
  { testing::Group warm_up(2); }
  const transport::ProcessCounts before;
  for (int round = 0; round < 5; ++round) {
    testing::Group group(3);
    EXPECT_EQ(group[0]->rpc_sync<&chain>("worker1", "worker1", "worker2", 3), 3);
    if (round % 2 == 1) group.kill(1);
  }
  EXPECT_EQ(before.left(), "");
}

TEST(Shutdown, StartsThatFailLeaveNothing) {
  { testing::Group warm_up(1); }
  const transport::ProcessCounts before;
  RpcBackendOptions options;
  auto store = std::make_shared<store::HashStore>();
  options.store = store;
  options.join_timeout = absl::Milliseconds(30);
  EXPECT_EQ(status_of([&] { Agent::start("a", 0, 2, options); }).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status_of([&] { Agent::start("a", 5, 2, options); }).code(), absl::StatusCode::kInvalidArgument);
  options.transports = {"pigeon"};
  EXPECT_EQ(status_of([&] { Agent::start("a", 0, 1, options); }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(before.left(), "");
  // The failed starts leave nothing in the store that keeps another worker from taking the name and rank.
  options.transports = {};
  Agent::start("a", 0, 1, options)->shutdown();
}

}  // namespace
}  // namespace gradwire::rpc
