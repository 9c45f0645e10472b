#include "gradwire/base/testing/failing_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/process/shortage.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/process_counts.h"

// Agents in a process that gets no more threads.
namespace gradwire::rpc {
namespace {

std::shared_ptr<Agent> start(absl::Duration handler_timeout = absl::Seconds(30)) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  options.handler_timeout = handler_timeout;
  return Agent::start("alone", 0, 1, options);
}

// Each thread that an agent starts is once the first one that the system refuses.
TEST(WithoutThreads, StartFailsWithTheLimitAndLeavesNothing) {
  { testing::Group warm_up(1); }
  const int threads = transport::count_threads();
  const int descriptors = transport::count_descriptors();
  bool refused = true;
  for (int n = 0; refused && n < 50; ++n) {
    absl::Status status;
    {
      const FailingThreads after_n(n);
      status = status_of([&] { start(absl::Milliseconds(50)); });
      refused = after_n.failed() > 0;
    }
    if (!status.ok()) {
      EXPECT_TRUE(is_local_shortage(status)) << n << ": " << status;
      EXPECT_NE(status.message().find("RLIMIT_NPROC"), std::string::npos) << status;
    }
    EXPECT_EQ(transport::count_threads_down_to(threads), threads) << n;
    EXPECT_EQ(transport::count_descriptors_down_to(descriptors), descriptors) << n;
  }
  EXPECT_FALSE(refused);
}

TEST(WithoutThreads, AgentDroppedByAHandlerEndsWhenThereIsAThread) {
  { testing::Group warm_up(1); }
  const int threads = transport::count_threads();
  std::shared_ptr<Agent> agent = start();
  std::shared_ptr<Executor> executor = agent->executor();
  std::optional<FailingThreads> none(std::in_place);
  std::atomic<bool> dropped{false};
  executor->post([agent = std::move(agent), &dropped]() mutable {
    agent.reset();
    dropped = true;
  });
  EXPECT_TRUE(eventually([&] { return dropped && none->failed() > 0; }));
  EXPECT_GT(transport::count_threads(), threads);
  none.reset();
  EXPECT_TRUE(eventually([&] { return transport::count_threads() <= threads; }));
}

TEST(WithoutThreads, ShutdownOfAnIdleAgentNeedsNone) {
  { testing::Group warm_up(1); }
  const int threads = transport::count_threads();
  const std::shared_ptr<Agent> agent = start();
  const FailingThreads none;
  const absl::Status status = status_of([&] { agent->shutdown(/*graceful=*/false); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(transport::count_threads_down_to(threads), threads);
}

TEST(WithoutThreads, ShutdownNamesTheLimitAndThreadsEndLater) {
  { testing::Group warm_up(1); }
  const int threads = transport::count_threads();
  const std::shared_ptr<Agent> agent = start(absl::Milliseconds(50));
  std::promise<void> running;
  std::promise<void> go_on;
  agent->executor()->post([&running, wait = go_on.get_future().share()] {
    running.set_value();
    wait.wait();
  });
  running.get_future().wait();
  {
    const FailingThreads none;
    const absl::Status status = status_of([&] { agent->shutdown(/*graceful=*/false); });
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_NE(status.message().find("RLIMIT_NPROC"), std::string::npos) << status;
  }
  go_on.set_value();
  EXPECT_TRUE(eventually([&] { return transport::count_threads() <= threads; }));
}

}  // namespace
}  // namespace gradwire::rpc
