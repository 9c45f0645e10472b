#include "gradwire/tests/inspect/page/browser.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace gradwire::inspect::testing {
namespace {

std::string browser() {
  for (const char* path : {"/usr/bin/chromium-headless-shell", "/usr/bin/chromium"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

}  // namespace

absl::Status find_browser() {
  return browser().empty()
             ? absl::NotFoundError("Chromium not found in /usr/bin: tools/setup --browser installs it")
             : absl::OkStatus();
}

std::string document_of(const std::string& url, int milliseconds, const std::vector<std::string>& options) {
  std::string home = absl::StrCat(::testing::TempDir(), "/browser_XXXXXX");
  if (mkdtemp(home.data()) == nullptr) {
    ADD_FAILURE() << "cannot make a folder";
    return "";
  }
  // Tests run as root, whom Chromium's sandbox does not accept, and in containers without shared memory.
  std::vector<std::string> arguments = {browser(),
                                        "--headless",
                                        "--no-sandbox",
                                        "--disable-gpu",
                                        "--disable-dev-shm-usage",
                                        "--no-first-run",
                                        absl::StrCat("--user-data-dir=", home),
                                        absl::StrCat("--virtual-time-budget=", milliseconds),
                                        "--dump-dom"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(url);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    setenv("HOME", home.c_str(), 1);
    // Its libraries are not instrumented.
    for (const char* name : {"LD_PRELOAD", "ASAN_OPTIONS", "TSAN_OPTIONS"}) unsetenv(name);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  std::string document;
  char bytes[4096];
  for (ssize_t got = 0; (got = read(ends[0], bytes, sizeof(bytes))) > 0;)
    document.append(bytes, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "Chromium ended with " << status;
  std::error_code ignored;
  std::filesystem::remove_all(home, ignored);
  return document;
}

}  // namespace gradwire::inspect::testing
