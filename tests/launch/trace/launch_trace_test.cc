// The trace of a job whose program knows nothing of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWorker[] = "tests/launch/trace/traced_worker";

class LaunchTrace : public ::testing::Test {
 protected:
  LaunchTrace() { std::filesystem::remove_all(directory_); }
  std::string content(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(absl::StrCat(directory_, "/", name)).rdbuf();
    return text.str();
  }
  std::string option() const { return absl::StrCat("--trace=", directory_); }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "launch_trace-", getpid());
};

TEST_F(LaunchTrace, EndOfTheJobWritesOneTraceOfAllWorkers) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", option(), kWorker, "20", "shutdown"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(),
              AllOf(HasSubstr(absl::StrCat("wrote ", directory_, "/trace.json: ")),
                    HasSubstr(" spans of 2 workers; clocks are mapped with an error of at most"),
                    Not(HasSubstr("missing")), Not(HasSubstr("not mapped"))));
  // Both ends of a call, and the arrow from one to the other.
  EXPECT_THAT(content("trace.json"),
              AllOf(HasSubstr("\"name\":\"default0 (process "), HasSubstr("\"name\":\"default1 (process "),
                    HasSubstr("twice"), HasSubstr("\"cat\":\"call\""), HasSubstr("\"cat\":\"handler\""),
                    HasSubstr("\"cat\":\"arrow\",\"name\":\"answer\""),
                    HasSubstr("\"clock_error_us\":{\"default0\":0.000,\"default1\":0.000}"),
                    HasSubstr("\"overwritten_records\":{}")));
}

TEST_F(LaunchTrace, EnvironmentAsksForItAsWell) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", kWorker, "1", "shutdown"},
                       {{"PET_TRACE", directory_}});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(content("trace.json"), HasSubstr("twice"));
}

TEST_F(LaunchTrace, RoundsThatFailedAreInItToo) {
  LaunchProcess launch(
      {"--standalone", "--nproc_per_node=2", "--max_restarts=1", option(), kWorker, "3", "fail"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  // Rank 1 has left by exit(), and the launcher has ended rank 0 by SIGTERM.
  EXPECT_THAT(launch.err(), AllOf(HasSubstr(" spans of 4 workers"), Not(HasSubstr("missing"))));
}

TEST_F(LaunchTrace, RingThatWasTooSmallSaysHowMuchIsMissing) {
  LaunchProcess launch(
      {"--standalone", "--nproc_per_node=2", "--trace_records=1", option(), kWorker, "5000", "shutdown"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), AllOf(HasSubstr(" earlier records of \"default0\" are missing"),
                                  HasSubstr("--trace_records=N")));
  EXPECT_THAT(content("trace.json"), HasSubstr(" earlier records were overwritten\""));
}

TEST_F(LaunchTrace, LargerRingHasAll) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", option(), kWorker, "5000", "shutdown"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), Not(HasSubstr("missing")));
}

TEST_F(LaunchTrace, EachNodeWritesThatOfItsOwnWorkers) {
  const int port = free_port();
  std::vector<std::unique_ptr<LaunchProcess>> nodes;
  for (int rank = 0; rank < 2; ++rank) {
    nodes.push_back(std::make_unique<LaunchProcess>(std::vector<std::string>{
        "--nnodes=2", absl::StrCat("--node_rank=", rank), absl::StrCat("--master_port=", port),
        "--master_addr=127.0.0.1", option(), kWorker, "3", "shutdown"}));
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(nodes[static_cast<std::size_t>(rank)]->wait(), 0);
    EXPECT_THAT(content(absl::StrCat("trace-node", rank, ".json")),
                AllOf(HasSubstr(absl::StrCat("\"name\":\"default", rank, " (process ")),
                      Not(HasSubstr(absl::StrCat("\"name\":\"default", 1 - rank, " (process ")))));
  }
}

TEST_F(LaunchTrace, ProgramWithoutAgentsIsNamed) {
  LaunchProcess launch(with_script({"--standalone", option()}, "exit 0"));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(),
              AllOf(HasSubstr("0 spans of 0 workers"), HasSubstr("rank 0 of round 0 is missing")));
}

}  // namespace
}  // namespace gradwire::tests
