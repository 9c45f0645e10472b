#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/gateway/testing/client.h"
#include "gradwire/tests/launch/launch_process.h"

// The gateway as a process beside a job that the launcher has started.
namespace gradwire::tests {
namespace {

using gateway::testing::call_of;
using gateway::testing::Client;
using gateway::testing::Context;
using gateway::testing::integer;
namespace v1 = gateway::v1;

// tools/gateway with its output in a pipe.
class GatewayProcess {
 public:
  explicit GatewayProcess(std::vector<std::string> arguments) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    arguments.insert(arguments.begin(), "tools/gateway/gateway");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = fdopen(ends[0], "r");
  }
  ~GatewayProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    fclose(out_);
  }
  // The next line that begins with "gateway: ". Empty at the end of the output.
  std::string line() {
    char buffer[4096];
    while (fgets(buffer, sizeof(buffer), out_) != nullptr) {
      if (absl::StartsWith(buffer, "gateway: ")) return buffer;
    }
    return "";
  }
  void terminate() const { kill(pid_, SIGTERM); }
  // Returns the exit status.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  FILE* out_ = nullptr;
};

TEST(GatewayProcess, ClientsCallAJobThatTheLauncherStarted) {
  const std::string init = absl::StrCat("file://", ::testing::TempDir(), "/gateway_job");
  LaunchProcess job({"--standalone", "--nproc_per_node=2", "tests/gateway/job_worker", init});
  EXPECT_EQ(job.events(2), (std::vector<std::string>{"ready", "ready"}));
  GatewayProcess gateway({"--address=127.0.0.1:0", absl::StrCat("--init_method=", init), "--allow=job::*"});
  const std::string serving = gateway.line();
  ASSERT_TRUE(absl::StrContains(serving, "serving at 127.0.0.1:")) << serving;
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(
      serving.substr(serving.find("127.0.0.1:") + 10, serving.find(" as ") - serving.find("127.0.0.1:") - 10),
      &port))
      << serving;

  Client client(port);
  Context context;
  v1::ListFunctionsResponse functions;
  ASSERT_TRUE(client.stub->ListFunctions(&context, {}, &functions).ok());
  ASSERT_EQ(functions.functions_size(), 1);
  EXPECT_EQ(functions.functions(0).signature(), "int64(int64,int64)");
  EXPECT_EQ(functions.functions(0).workers_size(), 2);
  EXPECT_EQ(functions.unreachable_size(), 0);
  for (int i = 0; i < 4; ++i) {
    const grpc::Status status = client.call(call_of("", "job::add", {integer(i), integer(40)}));
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(client.result.result().integer(), 40 + i);
  }
  gateway.terminate();
  EXPECT_EQ(gateway.wait(), 0);
  job.send(SIGTERM);
}

TEST(GatewayProcess, AJobThatCannotBeReachedIsAnError) {
  GatewayProcess gateway({"--address=127.0.0.1:0", "--init_method=file:///nowhere/at/all"});
  const std::string line = gateway.line();
  EXPECT_TRUE(absl::StrContains(line, "cannot join the job at file:///nowhere/at/all")) << line;
  EXPECT_EQ(gateway.wait(), 1);
}

TEST(GatewayProcess, AnOpenAddressIsRefused) {
  const std::string init = absl::StrCat("file://", ::testing::TempDir(), "/gateway_alone");
  GatewayProcess gateway({"--address=0.0.0.0:0", absl::StrCat("--init_method=", init)});
  const std::string line = gateway.line();
  EXPECT_TRUE(absl::StrContains(line, "refusing to listen on 0.0.0.0:0")) << line;
  EXPECT_EQ(gateway.wait(), 1);
}

}  // namespace
}  // namespace gradwire::tests
