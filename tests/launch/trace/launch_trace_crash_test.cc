// The trace of a job in which a worker crashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
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

TEST(LaunchTraceCrash, TraceHasTheWorkerThatCrashedAndThoseThatWereEnded) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "launch_trace_crash-", getpid());
  std::filesystem::remove_all(directory);
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", absl::StrCat("--trace=", directory),
                        "tests/launch/trace/traced_worker", "3", "crash"});
  EXPECT_EQ(launch.wait(), 128 + SIGSEGV) << launch.err();
  EXPECT_THAT(launch.err(), AllOf(HasSubstr(" spans of 2 workers"), Not(HasSubstr("missing"))));
  std::stringstream text;
  text << std::ifstream(directory + "/trace.json").rdbuf();
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("crash_on_call"), HasSubstr("\"result\":\"not ended\""),
                    HasSubstr("\"name\":\"default0 (process "), HasSubstr("\"name\":\"default1 (process ")));
}

}  // namespace
}  // namespace gradwire::tests
