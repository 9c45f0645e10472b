#include "gradwire/tests/launch/launch_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::tests {
namespace {

constexpr int kEventsFd = 9;
constexpr int kTooLongMilliseconds = 120000;

// Reads a byte. Returns false at the end of the pipe.
bool read_byte(int fd, char& byte) {
  pollfd event{.fd = fd, .events = POLLIN};
  if (poll(&event, 1, kTooLongMilliseconds) <= 0) {
    ADD_FAILURE() << "timed out waiting for an event of a worker";
    return false;
  }
  return read(fd, &byte, 1) == 1;
}

// Sets suppressions for a sanitizer in the launcher and its workers. They are not tests, so they have no
// suppressions of their own.
void suppress(const char* sanitizer, const std::string& file) {
  const char* options = std::getenv(sanitizer);
  if (options != nullptr && absl::StrContains(options, file)) return;
  setenv(sanitizer,
         absl::StrCat(options == nullptr ? "" : options, " print_suppressions=0 suppressions=",
                      std::filesystem::current_path().string(), "/", file)
             .c_str(),
         1);
}

}  // namespace

void prepare_environment() {
  for (const char* name : {"OMP_NUM_THREADS", "RANK", "WORLD_SIZE"}) unsetenv(name);
  suppress("TSAN_OPTIONS", "base/testing/tsan_suppressions.txt");
  suppress("LSAN_OPTIONS", "base/testing/lsan_suppressions.txt");
}

LaunchProcess::LaunchProcess(std::vector<std::string> args, std::map<std::string, std::string> environment,
                             int network) {
  static std::atomic<int> number{0};
  const std::string stem = absl::StrCat(::testing::TempDir(), "/launch.", getpid(), ".", ++number);
  out_path_ = stem + ".out";
  err_path_ = stem + ".err";
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) ADD_FAILURE() << "cannot create a pipe";
  events_fd_ = ends[0];
  args.insert(args.begin(), "tools/launch/launch");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const std::string runtime = runtime_folder();
  pid_ = fork();
  if (pid_ == 0) {
    // dup2() would keep O_CLOEXEC if it had nothing to do.
    if (ends[1] == kEventsFd) fcntl(kEventsFd, F_SETFD, 0);
    dup2(ends[1], kEventsFd);
    dup2(open(out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), STDOUT_FILENO);
    dup2(open(err_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), STDERR_FILENO);
    prepare_environment();
    setenv("GRADWIRE_RUNTIME_DIR", runtime.c_str(), 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    if (network >= 0 && setns(network, CLONE_NEWNET) != 0) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
}

LaunchProcess::~LaunchProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    wait();
  }
  close(events_fd_);
}

void LaunchProcess::send(int signal) const { kill(pid_, signal); }

std::vector<std::string> LaunchProcess::events(int count) {
  std::string text;
  for (char byte; count > 0 && read_byte(events_fd_, byte);) {
    text.push_back(byte);
    if (byte == '\n') --count;
  }
  EXPECT_EQ(count, 0) << "workers ended early";
  return lines(text);
}

std::string LaunchProcess::events_to_the_end() {
  std::string text;
  for (char byte; read_byte(events_fd_, byte);) text.push_back(byte);
  return text;
}

int LaunchProcess::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::vector<std::string> LaunchProcess::complaints() const {
  std::vector<std::string> all = lines(err());
  std::erase_if(all, [](const std::string& line) { return absl::StartsWith(line, "launch: waiting for "); });
  return all;
}

std::string LaunchProcess::read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string runtime_folder() { return absl::StrCat(::testing::TempDir(), "/jobs.", getpid()); }

std::vector<std::string> with_script(std::vector<std::string> options, const std::string& script) {
  for (const std::string& arg : {std::string("sh"), std::string("-c"), script}) options.push_back(arg);
  return options;
}

std::vector<std::string> lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

}  // namespace gradwire::tests
