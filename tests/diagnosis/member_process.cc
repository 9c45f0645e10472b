#include "gradwire/tests/diagnosis/member_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

namespace gradwire::tests {

MemberProcess::MemberProcess(std::vector<std::string> command, std::vector<std::string> environment) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor input(ends[0]);
  input_ = Descriptor(ends[1]);
  std::vector<char*> argv, envp;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  for (char** each = environ; *each != nullptr; ++each) envp.push_back(*each);
  for (std::string& variable : environment) envp.push_back(variable.data());
  envp.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input.get(), STDIN_FILENO);
  const int error = posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&files);
  EXPECT_EQ(error, 0) << command[0];
  if (error != 0) pid_ = 0;
}

MemberProcess::~MemberProcess() {
  if (pid_ == 0) return;
  send(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void MemberProcess::send(int signal) const {
  if (pid_ > 0) EXPECT_EQ(kill(pid_, signal), 0);
}

void MemberProcess::go_on() const { EXPECT_EQ(write(input_.get(), "\n", 1), 1); }

}  // namespace gradwire::tests
