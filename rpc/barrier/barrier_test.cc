#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs `each` for some workers at the same time, and returns the results.
std::vector<absl::Status> together(const std::vector<std::shared_ptr<Agent>>& agents,
                                   const std::function<void(Agent& agent)>& each) {
  std::vector<absl::Status> results(agents.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = status_of([&] { each(*agents[i]); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(RpcBarrier, ReturnsWhenTheLastWorkerHasCome) {
  testing::Group group(3);
  std::atomic<int> come = 0;
  std::thread early([&] {
    const auto results = together({group[0], group[2]}, [&](Agent& agent) {
      for (int round = 1; round <= 20; ++round) {
        ++come;
        agent.barrier();
        EXPECT_GE(come.load(), 3 * round);
      }
    });
    for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  });
  for (int round = 1; round <= 20; ++round) {
    ++come;
    group[1]->barrier({"worker2", "worker1", "worker0"});
    EXPECT_GE(come.load(), 3 * round);
  }
  early.join();
}

TEST(RpcBarrier, OfSomeWorkersNeedsOnlyThem) {
  testing::Group group(3);
  for (const absl::Status& status : together({group[1], group[2]}, [](Agent& agent) {
         agent.barrier({"worker1", "worker2"});
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  group[0]->barrier({"worker0"});
}

TEST(RpcBarrier, TheDeadlineNamesTheMissingWorkersAndEndsTheBarrierForAll) {
  testing::Group group(4);
  const auto results = together({group[0], group[1]}, [&](Agent& agent) {
    // The second worker has more time, but the first gives up. The reason must arrive in the last twentieth
    // of the first one's time, also on a loaded machine.
    agent.barrier({}, &agent == group[0].get() ? absl::Seconds(4) : absl::Seconds(100));
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(results[0])) << results[0];
  EXPECT_THAT(std::string(results[0].message()),
              AllOf(HasSubstr("worker \"worker2\", worker \"worker3\""), HasSubstr("rpc_barrier of")));
  EXPECT_TRUE(absl::IsDeadlineExceeded(results[1])) << results[1];
  EXPECT_THAT(std::string(results[1].message()), HasSubstr("worker \"worker0\" gave up"));
  // Those who come later get the same error, and the next barrier works.
  for (const absl::Status& status :
       together({group[2], group[3]}, [](Agent& agent) { agent.barrier({}, absl::Seconds(100)); })) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  for (const absl::Status& status : together({group[0], group[1], group[2], group[3]},
                                             [](Agent& agent) { agent.barrier({}, absl::Seconds(100)); })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(RpcBarrier, AWorkerThatEndsIsNamed) {
  testing::Group group(3);
  std::thread killer;
  const auto results = together({group[0], group[1]}, [&](Agent& agent) {
    if (&agent == group[0].get()) killer = std::thread([&] { group.kill(2); });
    agent.barrier({}, absl::Seconds(100));
  });
  killer.join();
  for (const absl::Status& status : results) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker2"));
  }
}

TEST(RpcBarrier, ALeaderThatShutsDownIsNamedAndUnavailable) {
  testing::Group group(3);
  std::thread killer([&] {
    EXPECT_TRUE(eventually([&] { return group[0]->tables().served_calls == 2; }));
    group.kill(0);
  });
  const auto results =
      together({group[1], group[2]}, [](Agent& agent) { agent.barrier({}, absl::Seconds(100)); });
  killer.join();
  for (const absl::Status& status : results) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker \"worker0\""));
  }
}

TEST(RpcBarrier, WrongNamesAreRefusedAtOnce) {
  testing::Group group(3);
  AgentGuard guard(group[0]);
  const absl::Status without = status_of([] { rpc_barrier({"worker1", "worker2"}); });
  EXPECT_TRUE(absl::IsInvalidArgument(without)) << without;
  EXPECT_THAT(std::string(without.message()), HasSubstr("this worker, \"worker0\", is not among them"));
  EXPECT_TRUE(absl::IsInvalidArgument(status_of([] { rpc_barrier({"worker0", "worker1", "worker1"}); })));
  EXPECT_TRUE(absl::IsNotFound(status_of([] { rpc_barrier({"worker0", "worker7"}); })));
}

TEST(RpcBarrier, AnOpenGroupNeedsNames) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  const std::shared_ptr<Agent> agent = Agent::start("a", -1, 0, options);
  EXPECT_TRUE(absl::IsInvalidArgument(status_of([&] { agent->barrier(); })));
  agent->barrier({"a"});
}

TEST(RpcBarrier, MalformedArrivalsAreRefused) {
  testing::Group group(3);
  const auto send = [&](const std::vector<uint64_t>& members) {
    proto::Arrive arrive;
    arrive.mutable_members()->Add(members.begin(), members.end());
    return group[1]
        ->services()
        .call_service(group[0]->services().self(), 12, arrive.SerializeAsString(), nullptr, {})
        .result()
        .status();
  };
  std::vector<uint64_t> both = {group[0]->services().self().incarnation,
                                group[1]->services().self().incarnation};
  std::sort(both.begin(), both.end());
  EXPECT_TRUE(absl::IsInvalidArgument(send({})));
  EXPECT_TRUE(absl::IsInvalidArgument(send({both[1], both[0]})));
  EXPECT_TRUE(absl::IsInvalidArgument(send({both[0], both[0], both[1]})));
  EXPECT_TRUE(absl::IsInvalidArgument(send({group[0]->services().self().incarnation})));
  EXPECT_TRUE(absl::IsInvalidArgument(send({group[1]->services().self().incarnation})));
  std::vector<uint64_t> stranger = both;
  stranger.push_back(~uint64_t{0});
  EXPECT_TRUE(send(stranger).ok());  // The answer contains the error.
}

TEST(RpcTimeout, ChangesAtRunTime) {
  RpcBackendOptions options;
  options.rpc_timeout = absl::Seconds(42);
  testing::Group group(2, options);
  AgentGuard guard(group[0]);
  EXPECT_EQ(get_rpc_timeout(), absl::Seconds(42));
  set_rpc_timeout(absl::Milliseconds(200));
  EXPECT_EQ(get_rpc_timeout(), absl::Milliseconds(200));
  EXPECT_EQ(group[1]->get_rpc_timeout(), absl::Seconds(42));
  // The barrier has no timeout of its own, so it uses the new one.
  EXPECT_TRUE(absl::IsDeadlineExceeded(status_of([] { rpc_barrier(); })));
  set_rpc_timeout(absl::InfiniteDuration());
  EXPECT_EQ(get_rpc_timeout(), absl::InfiniteDuration());
  for (const absl::Duration timeout : {absl::ZeroDuration(), -absl::Seconds(1), -absl::InfiniteDuration()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status_of([&] { set_rpc_timeout(timeout); })));
  }
  EXPECT_EQ(get_rpc_timeout(), absl::InfiniteDuration());
  // The other worker has come to one barrier less.
  EXPECT_TRUE(absl::IsDeadlineExceeded(status_of([&] { group[1]->barrier(); })));
}

TEST(RpcTimeout, NeedsAnAgent) {
  EXPECT_TRUE(absl::IsFailedPrecondition(status_of([] { set_rpc_timeout(absl::Seconds(1)); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(status_of([] { (void)get_rpc_timeout(); })));
  EXPECT_TRUE(absl::IsFailedPrecondition(status_of([] { rpc_barrier(); })));
}

}  // namespace
}  // namespace gradwire::rpc
