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
  ServerProcess(const std::string& init_method, const std::string& name, int rank, int world_size) {
    std::string arguments[] = {"tests/rpc/server", init_method, name, absl::StrCat(rank),
                               absl::StrCat(world_size)};
    char* argv[6] = {};
    for (int i = 0; i < 5; ++i) argv[i] = arguments[i].data();
    EXPECT_EQ(::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv, environ), 0);
  }
  ~ServerProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }

  void kill() { ::kill(pid_, SIGKILL); }
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

std::shared_ptr<Agent> start_client(const std::string& init_method) {
  RpcBackendOptions options;
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

TEST(Process, KilledServerFailsCallsInFlightAtOnce) {
  const std::string where = init_method("killed");
  ServerProcess server(where, "server", 1, 2);
  std::shared_ptr<Agent> client = start_client(where);
  RRef<counting::Tally> tally = client->remote<counting::Tally>("server", 0);
  tally.rpc_sync<&counting::Tally::count>(1);
  Future<void> call = client->rpc_async<&counting::hold>("server");
  ASSERT_TRUE(counting::held().wait_for(absl::Seconds(60)));

  server.kill();
  const absl::Time start = absl::Now();
  const absl::Status status = call.result();
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
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
  EXPECT_LT(absl::Now() - start, absl::Seconds(6));
  EXPECT_EQ(client->tables().held_forks, 0u);
}

}  // namespace
}  // namespace gradwire::rpc
