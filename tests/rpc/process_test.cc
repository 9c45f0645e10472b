#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/agent.h"
#include "rpc/call.h"
#include "tests/rpc/counting.h"

extern char** environ;

// Agents in processes of their own.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

class ServerProcess {
 public:
  ServerProcess(const std::string& init_method, const std::string& name, int rank, int world_size,
                const HeartbeatOptions& heartbeat = {}) {
    std::string arguments[] = {"tests/rpc/server",
                               init_method,
                               name,
                               absl::StrCat(rank),
                               absl::StrCat(world_size),
                               absl::StrCat(absl::ToInt64Milliseconds(heartbeat.interval)),
                               absl::StrCat(absl::ToInt64Milliseconds(heartbeat.dead_after))};
    char* argv[8] = {};
    for (int i = 0; i < 7; ++i) argv[i] = arguments[i].data();
    EXPECT_EQ(::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv, environ), 0);
  }
  ~ServerProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }

  void kill() { signal(SIGKILL); }
  void signal(int number) { ::kill(pid_, number); }
  // Returns when no thread of it runs any more.
  void stop() {
    signal(SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  // The exit code; negative for a signal.
  int wait() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
};

std::string init_method(const char* name) { return absl::StrCat("file://", ::testing::TempDir(), "/", name); }

std::shared_ptr<Agent> start_client(const std::string& init_method, const HeartbeatOptions& heartbeat = {}) {
  RpcBackendOptions options;
  options.heartbeat = heartbeat;
  options.init_method = init_method;
  options.join_timeout = absl::Seconds(60);
  return Agent::start("client", 0, 2, options);
}

TEST(Process, StaticallyLinkedServerServesWhatItNeverNames) {
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

// Silence says nothing for so long that what is noticed at once is told from it, also on a busy machine.
constexpr HeartbeatOptions kPatientHeartbeat = {absl::Seconds(1), absl::Seconds(60), absl::Seconds(120)};
constexpr absl::Duration kAtOnce = absl::Seconds(30);

TEST(Process, KilledServerFailsCallsInFlightAtOnce) {
  const std::string where = init_method("killed");
  ServerProcess server(where, "server", 1, 2);
  std::shared_ptr<Agent> client = start_client(where, kPatientHeartbeat);
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

// Waits until the agent says so of the worker.
bool reaches(const std::shared_ptr<Agent>& agent, const std::string& name, WorkerState state) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (agent->worker_state(name) != state) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

TEST(Process, KilledServerIsDeadAtOnce) {
  const std::string where = init_method("noticed");
  ServerProcess server(where, "server", 1, 2);
  std::shared_ptr<Agent> client = start_client(where, kPatientHeartbeat);
  EXPECT_EQ(client->rpc_sync<&counting::add>("server", 2, 3), 5);
  server.kill();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(reaches(client, "server", WorkerState::kDead));
  // By its host's word, not by its silence.
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
  EXPECT_FALSE(call.done());
  server.signal(SIGCONT);
  EXPECT_EQ(call.wait(), 7);
  EXPECT_TRUE(reaches(client, "server", WorkerState::kAlive));
  tally = RRef<counting::Tally>();
  client->shutdown();
  EXPECT_EQ(server.wait(), 0);
}

TEST(Process, ServerPausedForTooLongIsDeadAndLearnsIt) {
  const std::string where = init_method("too_long");
  // Before it is paused neither must take the other for dead, however busy the machine is.
  const HeartbeatOptions heartbeat = {absl::Milliseconds(100), absl::Milliseconds(500), absl::Seconds(3)};
  ServerProcess server(where, "server", 1, 2, heartbeat);
  std::shared_ptr<Agent> client = start_client(where, heartbeat);
  EXPECT_EQ(client->rpc_sync<&counting::add>("server", 2, 3), 5);
  server.stop();
  Future<int64_t> call = client->rpc_async<&counting::add>("server", 1, 1);
  EXPECT_TRUE(reaches(client, "server", WorkerState::kDead));
  const absl::Status status = call.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"server\""));
  server.signal(SIGCONT);
  // It waits in its graceful shutdown, which cannot succeed any more.
  EXPECT_EQ(server.wait(), 1);
  client->shutdown(/*graceful=*/false);
}

}  // namespace
}  // namespace gradwire::rpc
