#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/tests/rpc/counting.h"
#include "gradwire/tests/rpc/server_process.h"

// Agents in different processes, which are killed and paused.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

std::string init_method(const char* name) { return absl::StrCat("file://", ::testing::TempDir(), "/", name); }

std::shared_ptr<Agent> start_agent(const std::string& init_method, const std::string& name, int rank,
                                   int world_size, const HeartbeatOptions& heartbeat) {
  RpcBackendOptions options;
  options.heartbeat = heartbeat;
  options.init_method = init_method;
  options.join_timeout = absl::Seconds(60);
  return Agent::start(name, rank, world_size, options);
}

std::shared_ptr<Agent> start_client(const std::string& init_method, const HeartbeatOptions& heartbeat = {}) {
  return start_agent(init_method, "client", 0, 2, heartbeat);
}

TEST(Process, StaticallyLinkedServerServesFunctionsThatItsCodeDoesNotName) {
  const std::string where = init_method("serves");
  ServerProcess server(where, "server", 1, 2);
  std::shared_ptr<Agent> client = start_client(where);
  EXPECT_EQ(client->rpc_sync<&counting::add>("server", 2, 3), 5);
  {
    RRef<counting::Tally> tally = client->remote<counting::Tally>("server", 10);
    EXPECT_EQ(tally.rpc_sync<&counting::Tally::count>(5), 15);
  }
  client->shutdown();
  EXPECT_EQ(server.wait(), 0);
}

// With these times silence has no effect for ten minutes. So a death that is noticed within kAtOnce was
// noticed in another way, also on a busy machine.
constexpr HeartbeatOptions kSlowHeartbeat = {absl::Seconds(10), absl::Minutes(10), absl::Minutes(20)};
constexpr absl::Duration kAtOnce = absl::Seconds(30);

TEST(Process, KilledServerFailsCallsInFlightAtOnce) {
  const std::string where = init_method("killed");
  ServerProcess server(where, "server", 1, 2);
  std::shared_ptr<Agent> client = start_client(where, kSlowHeartbeat);
  RRef<counting::Tally> tally = client->remote<counting::Tally>("server", 0);
  tally.rpc_sync<&counting::Tally::count>(1);
  Future<void> call = client->rpc_async<&counting::hold>("server");
  ASSERT_TRUE(counting::held().wait_for(absl::Seconds(60)));

  server.kill();
  const absl::Time start = absl::Now();
  const absl::Status status = call.result();
  EXPECT_LT(absl::Now() - start, kAtOnce);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"server\""));
  EXPECT_EQ(worker_of(status), "server");
  EXPECT_EQ(server.wait(), -SIGKILL);

  try {
    tally.rpc_sync<&counting::Tally::count>(1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnavailable) << error.what();
    EXPECT_EQ(error.worker(), "server");
  }
  try {
    client->shutdown();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnavailable) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("\"server\""));
  }
  EXPECT_LT(absl::Now() - start, kAtOnce);
  EXPECT_EQ(client->tables().held_forks, 0u);
}

TEST(Process, KilledServerIsDeadAtOnce) {
  const std::string where = init_method("noticed");
  ServerProcess server(where, "server", 1, 2);
  std::shared_ptr<Agent> client = start_client(where, kSlowHeartbeat);
  EXPECT_EQ(client->rpc_sync<&counting::add>("server", 2, 3), 5);
  server.kill();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(reaches(client, "server", WorkerState::kDead));
  // The host of the server reported the death: the silence alone would have taken much longer.
  EXPECT_LT(absl::Now() - start, kAtOnce);
  client->shutdown(/*graceful=*/false);
}

TEST(Process, PausedServerIsSuspectAndComesBackWithoutHarm) {
  const std::string where = init_method("paused");
  const HeartbeatOptions heartbeat = {absl::Milliseconds(20), absl::Milliseconds(100), absl::Seconds(60)};
  ServerProcess server(where, "server", 1, 2, heartbeat);
  std::shared_ptr<Agent> client = start_client(where, heartbeat);
  RRef<counting::Tally> tally = client->remote<counting::Tally>("server", 1);
  EXPECT_EQ(tally.rpc_sync<&counting::Tally::count>(1), 2);
  server.stop();
  Future<int64_t> call = tally.rpc_async<&counting::Tally::count>(5);
  EXPECT_TRUE(reaches(client, "server", WorkerState::kSuspect));
  // A call fails at its deadline, also if the pause is longer.
  const absl::Status late = status_of([&] {
    client->rpc_sync<&counting::add>(Destination("server").with_timeout(absl::Milliseconds(200)), 1, 1);
  });
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  // A call with a longer timeout still waits.
  EXPECT_FALSE(call.done());
  server.signal(SIGCONT);
  EXPECT_EQ(call.wait(), 7);
  EXPECT_TRUE(reaches(client, "server", WorkerState::kAlive));
  tally = RRef<counting::Tally>();
  client->shutdown();
  EXPECT_EQ(server.wait(), 0);
}

// Long enough that no worker is declared dead before the pause, also on a busy machine.
constexpr HeartbeatOptions kDeadInTenSeconds = {absl::Milliseconds(500), absl::Milliseconds(2500),
                                                absl::Seconds(10)};

// Pauses the server until the client declares it dead, then resumes it.
void pause_until_dead(ServerProcess& server, const std::shared_ptr<Agent>& client) {
  EXPECT_EQ(client->rpc_sync<&counting::add>("server", 2, 3), 5);
  server.stop();
  Future<int64_t> call = client->rpc_async<&counting::add>("server", 1, 1);
  EXPECT_TRUE(reaches(client, "server", WorkerState::kDead));
  const absl::Status status = call.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"server\""));
  server.resume();
}

TEST(Process, ServerPausedForTooLongIsDeadAndLearnsIt) {
  const std::string where = init_method("too_long");
  // The server calls the client again after the pause.
  ServerProcess server(where, "server", 1, 2, kDeadInTenSeconds, "tests/rpc/calling_server");
  std::shared_ptr<Agent> client = start_client(where, kDeadInTenSeconds);
  pause_until_dead(server, client);
  EXPECT_EQ(server.wait(), exit_code_of(absl::StatusCode::kAborted));
  client->shutdown(/*graceful=*/false);
}

TEST(Process, GracefulShutdownOfAServerPausedForTooLongIsAborted) {
  const std::string where = init_method("too_long_to_end");
  // The server waits in its graceful shutdown, which cannot succeed any more.
  ServerProcess server(where, "server", 1, 2, kDeadInTenSeconds);
  std::shared_ptr<Agent> client = start_client(where, kDeadInTenSeconds);
  pause_until_dead(server, client);
  EXPECT_EQ(server.wait(), exit_code_of(absl::StatusCode::kAborted));
  client->shutdown(/*graceful=*/false);
}

TEST(Process, MemberKilledDuringAGracefulShutdownIsNamedByTheOthersAtOnce) {
  const std::string where = init_method("shutdown");
  // This process begins its graceful shutdown as soon as it has joined.
  ServerProcess victim(where, "victim", 2, 3, kSlowHeartbeat);
  std::shared_ptr<Agent> second;
  std::thread joining([&] { second = start_agent(where, "second", 1, 3, kSlowHeartbeat); });
  const std::shared_ptr<Agent> first = start_agent(where, "first", 0, 3, kSlowHeartbeat);
  joining.join();
  EXPECT_EQ(first->rpc_sync<&counting::add>("victim", 2, 3), 5);
  // The first waits for the second, which has not called shutdown yet.
  absl::Status status;
  std::thread ending(
      [&] { status = status_of([&] { first->shutdown(/*graceful=*/true, absl::Minutes(5)); }); });
  victim.kill();
  const absl::Time killed = absl::Now();
  ending.join();
  const absl::Status late = status_of([&] { second->shutdown(/*graceful=*/true, absl::Minutes(5)); });
  EXPECT_LT(absl::Now() - killed, kAtOnce);
  for (const absl::Status& each : {status, late}) {
    EXPECT_EQ(each.code(), absl::StatusCode::kUnavailable) << each;
    EXPECT_THAT(std::string(each.message()), HasSubstr("\"victim\""));
  }
}

}  // namespace
}  // namespace gradwire::rpc
