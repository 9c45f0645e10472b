#include "gradwire/tests/rpc/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/testing/eventually.h"

extern char** environ;

namespace gradwire::rpc {

ChildProcess::ChildProcess(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  EXPECT_EQ(::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  (void)wait();
}

void ChildProcess::signal(int number) { ::kill(pid_, number); }

void ChildProcess::kill() { signal(SIGKILL); }

void ChildProcess::stop() {
  signal(SIGSTOP);
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
  EXPECT_TRUE(WIFSTOPPED(status));
}

void ChildProcess::resume() { signal(SIGCONT); }

int ChildProcess::wait() {
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

ServerProcess::ServerProcess(const std::string& init_method, const std::string& name, int rank,
                             int world_size, const HeartbeatOptions& heartbeat, const std::string& program)
    : ChildProcess({program, init_method, name, absl::StrCat(rank), absl::StrCat(world_size),
                    absl::StrCat(absl::ToInt64Milliseconds(heartbeat.interval)),
                    absl::StrCat(absl::ToInt64Milliseconds(heartbeat.dead_after))}) {}

bool reaches(const std::shared_ptr<Agent>& agent, const std::string& name, WorkerState state) {
  return eventually([&] { return agent->worker_state(name) == state; });
}

}  // namespace gradwire::rpc
