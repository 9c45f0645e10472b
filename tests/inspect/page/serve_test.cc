// The program `inspect serve`, as users run it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/tests/inspect/page/page_client.h"
#include "gradwire/transport/http/testing/http_client.h"

namespace gradwire::inspect {
namespace {

using testing::get_data;
using ::testing::HasSubstr;
using testing::PageUrl;

// The program, with its standard output and error in one pipe.
struct Serve {
  explicit Serve(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"tools/inspect/inspect", "serve"});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    out = fdopen(ends[0], "r");
  }
  ~Serve() {
    if (pid > 0) end(SIGKILL);
    fclose(out);
  }
  // Empty at the end of the output.
  std::string line() {
    char bytes[4096];
    return fgets(bytes, sizeof(bytes), out) == nullptr ? "" : bytes;
  }
  // The exit status, or -signal. `signo` 0: the program ends by itself.
  int end(int signo) {
    if (signo != 0) kill(pid, signo);
    int status = 0;
    waitpid(std::exchange(pid, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  pid_t pid = 0;
  FILE* out = nullptr;
};

TEST(InspectServe, PrintsItsAddressAndEndsWithSuccess) {
  for (const int signo : {SIGINT, SIGTERM}) {
    Serve serve({"--store=file:///nonexistent/job"});
    std::string line = serve.line();
    ASSERT_THAT(line, HasSubstr("http://127.0.0.1:"));
    line.pop_back();
    const PageUrl url(line);
    EXPECT_EQ(transport::testing::http_get(url.address, "/?token=" + url.token).status, 200);
    EXPECT_EQ(get_data(url.address, url.token).status, 200);
    EXPECT_EQ(get_data(url.address, "wrong").status, 403);
    EXPECT_THAT(serve.line(), HasSubstr("Ctrl-C"));
    EXPECT_EQ(serve.end(signo), 0);
  }
}

TEST(InspectServe, RefusesAddressesOfOtherHostsAndWrongOptions) {
  Serve other({"--store=file:///nonexistent/job", "--listen=0.0.0.0:0"});
  EXPECT_THAT(other.line(), HasSubstr("--insecure"));
  EXPECT_EQ(other.end(0), 1);
  Serve malformed({"--store=file:///nonexistent/job", "--listen=80"});
  EXPECT_THAT(malformed.line(), HasSubstr("malformed address"));
  EXPECT_EQ(malformed.end(0), 2);
  Serve unknown({"--once"});
  EXPECT_THAT(unknown.line(), HasSubstr("unknown option --once"));
  EXPECT_EQ(unknown.end(0), 2);
}

}  // namespace
}  // namespace gradwire::inspect
