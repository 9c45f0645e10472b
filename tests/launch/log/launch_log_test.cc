#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/tests/launch/launch_process.h"

// The log of launcher and workers: its format, its level, the prefixes of workers' lines, and the progress of
// waits.
namespace gradwire::tests {
namespace {

using ::testing::HasSubstr;

TEST(LaunchLog, OptionsReachTheWorkersAndReplaceTheEnvironment) {
  LaunchProcess launch(with_script({"--standalone", "--log_level=info", "--log_format=json"},
                                   "echo $GRADWIRE_LOG_LEVEL $GRADWIRE_LOG_FORMAT >&9"),
                       {{"GRADWIRE_LOG_LEVEL", "error"}, {"GRADWIRE_LOG_FORMAT", "text"}});
  EXPECT_EQ(launch.events_to_the_end(), "info json\n");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(LaunchLog, WithoutOptionsTheEnvironmentReachesTheWorkers) {
  LaunchProcess launch(with_script({"--standalone"}, "echo $GRADWIRE_LOG_LEVEL $GRADWIRE_LOG_FORMAT >&9"),
                       {{"GRADWIRE_LOG_LEVEL", "error"}, {"GRADWIRE_LOG_FORMAT", "text"}});
  EXPECT_EQ(launch.events_to_the_end(), "error text\n");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(LaunchLog, UnknownValuesAreRefused) {
  for (const auto& [option, expected] : {std::pair("--log_level=loud", "debug, info, warning, error, off"),
                                         std::pair("--log_format=xml", "text, json"),
                                         std::pair("--line_prefix={node}", "{rank}, {local_rank}")}) {
    LaunchProcess launch(with_script({"--standalone", option}, "true"));
    EXPECT_EQ(launch.wait(), 2);
    EXPECT_THAT(launch.err(), HasSubstr(expected));
  }
}

TEST(LaunchLog, EachLineOfTheLauncherIsAnObjectInJson) {
  LaunchProcess launch(with_script({"--standalone", "--log_format=json", "--nproc_per_node=2"}, "exit 3"));
  EXPECT_EQ(launch.wait(), 3);
  bool summary = false;
  for (const std::string& line : lines(launch.err())) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(record.is_object()) << line;
    EXPECT_EQ(record["worker"], "launch") << line;
    EXPECT_TRUE(record.contains("time") && record.contains("pid")) << line;
    const std::string message = record["message"];
    if (!absl::StrContains(message, "exit code 3")) continue;
    summary = true;
    EXPECT_EQ(record["level"], "error");
  }
  EXPECT_TRUE(summary) << launch.err();
}

TEST(LaunchLog, WrongCommandLineIsAnObjectInJson) {
  LaunchProcess launch({"--standalone", "no_such_program"}, {{"GRADWIRE_LOG_FORMAT", "json"}});
  EXPECT_EQ(launch.wait(), 2);
  const nlohmann::json record =
      nlohmann::json::parse(lines(launch.err()).back(), nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(record["level"], "error") << launch.err();
  EXPECT_THAT(record["message"], HasSubstr("no_such_program"));
}

// The lines of two workers on standard output, in order.
std::vector<std::string> teed_lines(std::vector<std::string> options,
                                    const std::map<std::string, std::string>& environment = {}) {
  for (const char* option : {"--standalone", "--nproc_per_node=2", "--role=trainer", "--tee=1"}) {
    options.push_back(option);
  }
  options.push_back(absl::StrCat("--log_dir=", ::testing::TempDir(), "/prefix"));
  LaunchProcess launch(with_script(options, "echo hello"), environment);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  std::vector<std::string> all = lines(launch.out());
  std::sort(all.begin(), all.end());
  return all;
}

TEST(LaunchLog, PrefixOfTeedLinesIsAPattern) {
  EXPECT_EQ(teed_lines({}), (std::vector<std::string>{"[trainer0]:hello", "[trainer1]:hello"}));
  EXPECT_EQ(teed_lines({"--line_prefix=[{role} {rank}] "}),
            (std::vector<std::string>{"[trainer 0] hello", "[trainer 1] hello"}));
}

TEST(LaunchLog, PrefixOfTeedLinesMayComeFromTorchrunsVariable) {
  const std::map<std::string, std::string> environment = {
      {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${role_name}/${rank}/${local_rank}> "}};
  EXPECT_EQ(teed_lines({}, environment),
            (std::vector<std::string>{"trainer/0/0> hello", "trainer/1/1> hello"}));
  EXPECT_EQ(teed_lines({"--line_prefix={rank}:"}, environment),
            (std::vector<std::string>{"0:hello", "1:hello"}));
}

std::vector<std::string> node_options(int rank, int port) {
  return {"--nnodes=2", absl::StrCat("--node_rank=", rank), absl::StrCat("--master_port=", port),
          "--master_addr=127.0.0.1"};
}

TEST(LaunchLog, NodeThatIsMissingIsNamed) {
  const int port = free_port();
  std::vector<std::string> options = node_options(0, port);
  options.push_back("--log_format=json");
  LaunchProcess first(with_script(options, "true"));
  EXPECT_TRUE(eventually([&] { return absl::StrContains(first.err(), "waiting for node rank 1 to join"); },
                         absl::Seconds(60)))
      << first.err();
  LaunchProcess second(with_script(node_options(1, port), "true"));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  for (const std::string& line : lines(first.err())) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(record.is_object()) << line;
    if (record["level"] != "progress") continue;
    EXPECT_EQ(record["done"], 1);
    EXPECT_EQ(record["total"], 2);
    EXPECT_GE(record["elapsed_s"], 10);
  }
}

TEST(LaunchLog, WorkerThatHasNotComeToTheStoreIsNamed) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2", "--log_format=json"},
                  "if test $RANK = 1; then echo $$ >&9; exec sleep 1000; fi; exec tests/launch/rpc_worker"));
  const std::string pid = launch.events(1).at(0);
  const std::string expected = absl::StrCat(
      "1 of 2 workers of this node have come to the job's store; waiting for rank 1 (local rank 1, pid ", pid,
      ")");
  EXPECT_TRUE(eventually([&] { return absl::StrContains(launch.err(), expected); }, absl::Seconds(90)))
      << launch.err();
  launch.send(SIGTERM);
  launch.events_to_the_end();
  launch.wait();
}

TEST(LaunchLog, NodeThatWaitsForTheStoreNamesIt) {
  const int port = free_port();
  LaunchProcess second(with_script(node_options(1, port), "true"));
  EXPECT_TRUE(eventually(
      [&] {
        return absl::StrContains(second.err(),
                                 absl::StrCat("waiting for an answer of the store at 127.0.0.1:", port));
      },
      absl::Seconds(60)))
      << second.err();
  LaunchProcess first(with_script(node_options(0, port), "true"));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

// The launcher in the foreground of a terminal, as a user starts it.
class OnTerminal {
 public:
  explicit OnTerminal(std::vector<std::string> args) {
    args.insert(args.begin(), "tools/launch/launch");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = forkpty(&screen_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      prepare_environment();
      setenv("TERM", "xterm", 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~OnTerminal() { close(screen_); }

  // Reads until the output has `text`, for at most a minute. Returns whether it has.
  bool shows(const std::string& text) {
    while (!absl::StrContains(output_, text)) {
      pollfd readable{.fd = screen_, .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 60'000) <= 0 || !read_some()) return false;
    }
    return true;
  }
  void type(const std::string& keys) const {
    EXPECT_EQ(write(screen_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Reads until the launcher ends. Returns its exit code.
  int wait() {
    while (read_some()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const std::string& output() const { return output_; }

 private:
  bool read_some() {
    char buffer[4096];
    const ssize_t got = read(screen_, buffer, sizeof(buffer));
    if (got > 0) output_.append(buffer, got);
    return got > 0;
  }

  int screen_ = -1;
  pid_t pid_ = 0;
  std::string output_;
};

constexpr char kClear[] = "\r\x1b[K";

TEST(LaunchLog, TerminalHasAMovingLineThatDisappears) {
  const int port = free_port();
  OnTerminal first(with_script(node_options(0, port), "echo from the worker"));
  ASSERT_TRUE(first.shows("waiting for node rank 1 to join")) << first.output();
  LaunchProcess second(with_script(node_options(1, port), "true"));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.err();
  const std::string& output = first.output();
  const size_t drawn = output.find(absl::StrCat(kClear, "launch: waiting for node rank 1 to join"));
  ASSERT_NE(drawn, std::string::npos) << output;
  // The line is never ended, and it is cleared before the worker writes.
  const size_t rest = output.find('\n', drawn);
  const std::string line = output.substr(0, rest);
  EXPECT_NE(line.rfind(kClear), std::string::npos);
  EXPECT_FALSE(absl::StrContains(line.substr(line.rfind(kClear)), "waiting for node")) << output;
  EXPECT_THAT(output, HasSubstr("from the worker"));
}

TEST(LaunchLog, InterruptClearsTheMovingLine) {
  OnTerminal first(with_script(node_options(0, free_port()), "true"));
  ASSERT_TRUE(first.shows("waiting for node rank 1 to join")) << first.output();
  first.type("\x03");
  EXPECT_EQ(first.wait(), 130);
  const std::string& output = first.output();
  const size_t last = output.rfind("waiting for node rank 1");
  EXPECT_NE(output.find(kClear, last), std::string::npos) << output;
}

}  // namespace
}  // namespace gradwire::tests
