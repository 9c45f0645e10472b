// The process that hosts the group's store is paused, killed or started again. It is a worker, or a process
// that is not a worker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/free_port.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/rpc/counting.h"
#include "gradwire/tests/rpc/server_process.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

// Long enough that no worker is declared dead before the pause, also on a busy machine.
constexpr HeartbeatOptions kHeartbeat = {absl::Milliseconds(500), absl::Milliseconds(2500),
                                         absl::Seconds(10)};
// Limit for waits that depend on the paused process. A wait that is not bounded would last until the process
// is resumed, and so exceed this limit.
constexpr absl::Duration kBounded = absl::Minutes(2);

RpcBackendOptions options() {
  RpcBackendOptions options;
  options.heartbeat = kHeartbeat;
  options.join_timeout = absl::Minutes(1);
  options.rpc_timeout = absl::InfiniteDuration();
  return options;
}

absl::Status shutdown_of(const std::shared_ptr<Agent>& agent) {
  try {
    agent->shutdown();
    return absl::OkStatus();
  } catch (const Error& error) {
    return error.status();
  }
}

// Rank 0, in a process of its own, hosts the store; this process is rank 1.
class StoreHost : public ::testing::Test {
 protected:
  StoreHost()
      : where_(absl::StrCat("tcp://127.0.0.1:", free_port())), server_(where_, "server", 0, 2, kHeartbeat) {
    RpcBackendOptions client = options();
    client.init_method = where_;
    client_ = Agent::start("client", 1, 2, client);
  }

  const std::string where_;
  ServerProcess server_;
  std::shared_ptr<Agent> client_;
};

TEST_F(StoreHost, PausedWorkerThatHasTheStoreIsDeadAfterItsTime) {
  EXPECT_EQ(client_->rpc_sync<&counting::add>("server", 2, 3), 5);
  server_.stop();
  // The call has no deadline: the death of its callee ends it.
  Future<int64_t> call = client_->rpc_async<&counting::add>("server", 1, 1);
  EXPECT_TRUE(reaches(client_, "server", WorkerState::kSuspect));
  EXPECT_FALSE(call.done());
  ASSERT_TRUE(call.wait_for(kBounded));
  const absl::Status status = call.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"server\" is dead: no message arrived from it for"));
  EXPECT_EQ(client_->worker_state("server"), WorkerState::kDead);
  server_.resume();
  // The server waits in its graceful shutdown, which cannot succeed any more.
  EXPECT_EQ(server_.wait(), exit_code_of(absl::StatusCode::kAborted));
  client_->shutdown(/*graceful=*/false);
}

TEST_F(StoreHost, PausedWorkerThatHasTheStoreIsNamedByAGracefulShutdown) {
  server_.stop();
  const absl::Time begin = absl::Now();
  const absl::Status status = shutdown_of(client_);
  EXPECT_LT(absl::Now() - begin, kBounded);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker \"server\" ended before the graceful"));
}

TEST_F(StoreHost, ShortPauseOfAWorkerThatHasTheStoreDelaysAGracefulShutdown) {
  EXPECT_EQ(client_->rpc_sync<&counting::add>("server", 2, 3), 5);
  server_.stop();
  Future<int64_t> call = client_->rpc_async<&counting::add>("server", 1, 1);
  EXPECT_TRUE(reaches(client_, "server", WorkerState::kSuspect));
  server_.resume();
  EXPECT_EQ(call.wait(), 2);
  EXPECT_TRUE(shutdown_of(client_).ok());
  EXPECT_EQ(server_.wait(), 0);
}

absl::Status wait_for(const std::shared_ptr<Agent>& agent, const std::string& name,
                      absl::Duration timeout = kBounded) {
  try {
    agent->wait_for_worker(name, timeout);
    return absl::OkStatus();
  } catch (const Error& error) {
    return error.status();
  }
}

// Starts a worker of an open group. `timeout`: how long to wait until the store's process listens.
absl::StatusOr<std::shared_ptr<Agent>> start_with_store(const std::string& name, int port,
                                                        absl::Duration timeout = absl::Minutes(1)) {
  try {
    RpcBackendOptions to_store = options();
    to_store.store =
        std::make_shared<store::TcpStore>("127.0.0.1", port, store::TcpStoreOptions{.timeout = timeout});
    return Agent::start(name, -1, 0, to_store);
  } catch (const Error& error) {
    return error.status();
  }
}

TEST(StoreProcess, ConnectedWorkersGoOnWhenTheStoreIsKilled) {
  const int port = free_port();
  ChildProcess process({"tests/rpc/store_process", absl::StrCat(port)});
  auto a = start_with_store("a", port);
  ASSERT_TRUE(a.ok()) << a.status();
  auto b = start_with_store("b", port);
  ASSERT_TRUE(b.ok()) << b.status();
  ASSERT_TRUE(wait_for(*a, "b").ok());
  process.kill();
  const absl::Status missing = wait_for(*a, "c", absl::InfiniteDuration());
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnavailable) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no worker can join"));
  const absl::Status joined = start_with_store("c", port, absl::Seconds(5)).status();
  EXPECT_EQ(joined.code(), absl::StatusCode::kUnavailable) << joined;
  // The workers have not called each other yet, so they connect now.
  EXPECT_EQ((*a)->rpc_sync<&counting::add>("b", 2, 3), 5);
  EXPECT_EQ((*b)->rpc_sync<&counting::add>("a", 2, 3), 5);
  EXPECT_EQ((*a)->worker_state("b"), WorkerState::kAlive);
  EXPECT_TRUE(shutdown_of(*a).ok());
  EXPECT_TRUE(shutdown_of(*b).ok());
}

// A TcpStore keeps its data in memory, so a restarted one is empty.
TEST(StoreProcess, RestartedStoreDoesNotServeTheGroupOfBefore) {
  const int port = free_port();
  auto process =
      std::make_unique<ChildProcess>(std::vector<std::string>{"tests/rpc/store_process", absl::StrCat(port)});
  auto a = start_with_store("a", port);
  ASSERT_TRUE(a.ok()) << a.status();
  auto b = start_with_store("b", port);
  ASSERT_TRUE(b.ok()) << b.status();
  ASSERT_TRUE(wait_for(*a, "b").ok());
  process->kill();
  (void)process->wait();
  process =
      std::make_unique<ChildProcess>(std::vector<std::string>{"tests/rpc/store_process", absl::StrCat(port)});
  const absl::Status missing = wait_for(*a, "c");
  EXPECT_EQ(missing.code(), absl::StatusCode::kAborted) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("has lost its keys; no worker can join this group"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("restart all of them"));
  // A worker that joins now forms a new group, without the members of the first one.
  auto c = start_with_store("a", port);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ((*c)->get_worker_infos().size(), 1u);
  EXPECT_EQ((*a)->rpc_sync<&counting::add>("b", 2, 3), 5);
  EXPECT_TRUE(shutdown_of(*a).ok());
  EXPECT_TRUE(shutdown_of(*b).ok());
  EXPECT_EQ((*c)->get_worker_infos().size(), 1u);
  EXPECT_TRUE(shutdown_of(*c).ok());
}

TEST(StoreProcess, PausedStoreIsLostAfterItsTimeAndComesBack) {
  const int port = free_port();
  ChildProcess process({"tests/rpc/store_process", absl::StrCat(port)});
  RpcBackendOptions first = options();
  first.store = std::make_shared<store::TcpStore>("127.0.0.1", port);
  std::shared_ptr<Agent> a = Agent::start("a", -1, 0, first);
  const absl::Time begin = absl::Now();
  process.stop();
  try {
    a->wait_for_worker("b");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnavailable) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("no worker can join"));
    EXPECT_THAT(error.what(), HasSubstr("has not answered for"));
  }
  // The silence of the store counts from the start of the first call that gets no answer. That call may have
  // begun two seconds before the pause.
  EXPECT_GE(absl::Now() - begin, kHeartbeat.dead_after - absl::Milliseconds(2500));
  process.resume();
  RpcBackendOptions second = options();
  second.store = std::make_shared<store::TcpStore>("127.0.0.1", port);
  std::shared_ptr<Agent> b = Agent::start("b", -1, 0, second);
  // The first worker may still regard the store as lost. The wait goes on until it is back.
  const absl::Status joined = wait_for(a, "b");
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(a->rpc_sync<&counting::add>("b", 2, 3), 5);
  EXPECT_TRUE(shutdown_of(a).ok());
  EXPECT_TRUE(shutdown_of(b).ok());
}

}  // namespace
}  // namespace gradwire::rpc
