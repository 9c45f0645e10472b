// The token that a job on one node gets without any option.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/tests/launch/security/protection.h"

namespace gradwire::tests {
namespace {

// The line that a worker with kShowTokenAndWait writes.
struct Shown {
  int port = 0;
  std::string token;

  explicit Shown(const std::string& event) {
    const std::vector<std::string> parts = absl::StrSplit(event, ' ');
    EXPECT_EQ(parts.size(), 2u) << event;
    if (parts.size() != 2) return;
    port = std::stoi(parts[0]);
    token = parts[1];
  }
};

TEST(LaunchToken, AllWorkersGetItAndNoCommandLineOrEnvironmentShowsIt) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2"}, kShowTokenAndWait));
  std::set<std::string> tokens;
  for (const std::string& event : launch.events(2)) tokens.insert(Shown(event).token);
  ASSERT_EQ(tokens.size(), 1u);
  const std::string& token = *tokens.begin();
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(processes_that_show(token), std::vector<std::string>());
  launch.send(SIGTERM);
  launch.events_to_the_end();
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
  EXPECT_FALSE(absl::StrContains(launch.out() + launch.err(), token)) << launch.err();
}

TEST(LaunchToken, IsAnotherOneForEachJob) {
  const auto token_of_job = [] {
    LaunchProcess launch(with_script({"--standalone"}, kShowTokenAndWait));
    return Shown(launch.events(1).at(0)).token;
  };
  EXPECT_NE(token_of_job(), token_of_job());
}

TEST(LaunchToken, StoreServesOnlyProcessesThatHaveIt) {
  LaunchProcess launch(with_script({"--standalone"}, kShowTokenAndWait));
  const Shown shown(launch.events(1).at(0));
  EXPECT_TRUE(try_store(shown.port, {.token = shown.token}).ok())
      << try_store(shown.port, {.token = shown.token});
  const std::string wrong(64, '0');
  for (const SecurityOptions& without :
       {SecurityOptions(), SecurityOptions{.insecure = true}, SecurityOptions{.token = wrong}}) {
    const absl::Status status = try_store(shown.port, without);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(absl::StrContains(status.message(), "token")) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), shown.token)) << status;
  }
}

TEST(LaunchToken, RestartedWorkersHaveItAgain) {
  LaunchProcess launch(
      with_script({"--standalone", "--max_restarts=1"},
                  "cat /proc/self/fd/$GRADWIRE_TOKEN_FD >&9; echo >&9; exit $((1 - GRADWIRE_ROUND))"));
  const std::vector<std::string> tokens = lines(launch.events_to_the_end());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[0].size(), 64u);
  EXPECT_EQ(tokens[0], tokens[1]);
}

TEST(LaunchToken, ScriptRunsSeveralProgramsThatUseIt) {
  LaunchProcess launch(with_script(
      {"--standalone"},
      "exec 3</dev/null; for i in 1 2 3; do tests/launch/store_worker || exit 7; done; echo all >&9"));
  EXPECT_EQ(launch.events_to_the_end(), "all\n");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(LaunchToken, WorkersOfAnInnerLauncherGetItsOwn) {
  LaunchProcess launch(
      with_script({"--standalone"},
                  absl::StrCat("cat /proc/self/fd/$GRADWIRE_TOKEN_FD >&9; echo >&9; exec tools/launch/launch "
                               "--standalone sh -c 'cat /proc/self/fd/$GRADWIRE_TOKEN_FD >&9; echo >&9; "
                               "exec tests/launch/store_worker'")));
  const std::vector<std::string> tokens = lines(launch.events_to_the_end());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[1].size(), 64u);
  EXPECT_NE(tokens[0], tokens[1]);
}

TEST(LaunchToken, OfAFileIsUsedOnOneNodeToo) {
  const std::string token(40, 'a');
  const std::string file = token_file("one_node", token);
  LaunchProcess launch(
      with_script({"--standalone", "--token_file", file},
                  "test -z \"$GRADWIRE_TOKEN_FILE\" || exit 3; tests/launch/store_worker || exit 4; "
                  "cat /proc/self/fd/$GRADWIRE_TOKEN_FD >&9"));
  EXPECT_EQ(launch.events_to_the_end(), token);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(LaunchToken, FileThatOthersCanReadIsRefused) {
  const std::string file = token_file("open", std::string(40, 'a'));
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  LaunchProcess launch({"--standalone", "--token_file", file, "true"});
  EXPECT_NE(launch.wait(), 0);
  EXPECT_EQ(lines(launch.err()).size(), 1u) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), file)) << launch.err();
}

TEST(LaunchToken, MakeTokenWritesANewFile) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/made");
  EXPECT_EQ(LaunchProcess({"--make_token", file}).wait(), 0);
  struct stat status {};
  ASSERT_EQ(stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  std::string first, unchanged;
  std::getline(std::ifstream(file) >> std::ws, first);
  EXPECT_EQ(first.size(), 64u);
  LaunchProcess again({"--make_token", file});
  EXPECT_NE(again.wait(), 0);
  EXPECT_TRUE(absl::StrContains(again.err(), file)) << again.err();
  std::getline(std::ifstream(file) >> std::ws, unchanged);
  EXPECT_EQ(first, unchanged);
  LaunchProcess launch({"--standalone", "--token_file", file, "true"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(LaunchToken, InsecureJobHasNoneAndSaysSo) {
  LaunchProcess launch(
      with_script({"--standalone", "--insecure"},
                  "echo \"$GRADWIRE_INSECURE,$GRADWIRE_TOKEN_FD\" $MASTER_PORT >&9; exec sleep 1000"));
  const std::vector<std::string> parts = absl::StrSplit(launch.events(1).at(0), ' ');
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0], "1,");
  EXPECT_TRUE(try_store(std::stoi(parts[1]), {}).ok());
  launch.send(SIGTERM);
  launch.events_to_the_end();
  launch.wait();
  const std::vector<std::string> printed = lines(launch.err());
  EXPECT_EQ(std::count_if(printed.begin(), printed.end(),
                          [](const std::string& line) { return absl::StrContains(line, "not protected"); }),
            1)
      << launch.err();
}

}  // namespace
}  // namespace gradwire::tests
