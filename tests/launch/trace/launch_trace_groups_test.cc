// The trace of a job whose workers have process groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LaunchTraceGroups : public ::testing::TestWithParam<const char*> {};

TEST_P(LaunchTraceGroups, CollectivesOfAllRanksAreConnected) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "launch_trace_groups-", getpid());
  std::filesystem::remove_all(directory);
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", absl::StrCat("--trace=", directory),
                        "tests/launch/trace/group_worker", GetParam()});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), AllOf(HasSubstr(" spans of 2 workers"), Not(HasSubstr("missing")),
                                  Not(HasSubstr("not mapped"))));
  std::stringstream text;
  text << std::ifstream(directory + "/trace.json").rdbuf();
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2"),
                    HasSubstr("\"cat\":\"collective\",\"name\":\"barrier\""),
                    HasSubstr("\"cat\":\"arrow\",\"name\":\"last to arrive\""), Not(HasSubstr("not ended"))));
}

INSTANTIATE_TEST_SUITE_P(Ends, LaunchTraceGroups, ::testing::Values("destroy", "leave"));

}  // namespace
}  // namespace gradwire::tests
