#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

using Lines = std::vector<std::string>;

Lines sorted_lines(const std::string& text) {
  Lines result = lines(text);
  std::sort(result.begin(), result.end());
  return result;
}

TEST(LaunchOptions, OneCommandStartsGroupsOfRoles) {
  LaunchProcess launch(with_script({"--standalone", "--role=server:1", "--role=trainer:2", "--tee=1"},
                                   "echo $RANK $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE"));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(sorted_lines(launch.out()),
            (Lines{"[server0]:0 server 0/1", "[trainer0]:1 trainer 0/2", "[trainer1]:2 trainer 1/2"}));
}

TEST(LaunchOptions, LocalRanksThatAreNotShownWriteOnlyToFiles) {
  const std::string log_dir = absl::StrCat(::testing::TempDir(), "/filter");
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=3", "--local_ranks_filter=1", "-t1",
                                    "--run_id=job", absl::StrCat("--log_dir=", log_dir)},
                                   "echo out $RANK; echo err $RANK >&2"));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(launch.out(), "[default1]:out 1\n");
  EXPECT_TRUE(absl::StrContains(launch.err(), "err 1")) << launch.err();
  EXPECT_FALSE(absl::StrContains(launch.err(), "err 0")) << launch.err();
  std::string line;
  std::ifstream log(log_dir + "/job/attempt_0/2/stdout.log");
  std::getline(log, line);
  EXPECT_EQ(line, "out 2");
}

TEST(LaunchOptions, WithoutUseEnvTheLocalRankIsAnArgument) {
  const std::string program = absl::StrCat(::testing::TempDir(), "/arguments");
  std::ofstream(program) << "#!/bin/sh\necho \"$*\"\n";
  chmod(program.c_str(), 0755);
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "--use_env=false", program, "a", "b"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(sorted_lines(launch.out()), (Lines{"--local_rank=0 a b", "--local_rank=1 a b"}));
}

TEST(LaunchOptions, RunPathRunsADirectory) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/package");
  mkdir(directory.c_str(), 0755);
  std::ofstream(directory + "/__main__.py")
      << "import os, sys\nprint(__name__, os.environ['RANK'], sys.argv[1:])\n";
  LaunchProcess launch({"--standalone", "--run_path", directory, "a"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(launch.out(), "__main__ 0 ['a']\n");
}

TEST(LaunchOptions, VariablesOfTorchrunAreRead) {
  LaunchProcess launch(with_script({}, "echo $WORLD_SIZE $ROLE_NAME"),
                       {{"PET_NPROC_PER_NODE", "2"}, {"PET_STANDALONE", "1"}, {"PET_ROLE", "x"}});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(launch.out(), "2 x\n2 x\n");
}

}  // namespace
}  // namespace gradwire::tests
