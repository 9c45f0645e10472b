// Tests operations when ranks are killed, do not arrive, or leave. The ranks are processes.
#include <ATen/ATen.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "gradwire/base/clock.h"
#include "gradwire/tests/collectives/rank_processes.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

const World kFailingWorlds[] = {{"shared memory", "cpu", {}},
                                {"messages", "cpu", {{"shared_memory", "off"}}}};

class Failures : public ::testing::TestWithParam<int> {
 protected:
  const World& world() const { return kFailingWorlds[GetParam()]; }
};

TEST_P(Failures, AKilledRankEndsTheOperationOnAllSurvivors) {
  const RankProcesses ranks({.size = 3, .world = world()}, [](ProcessGroup& group, std::FILE* out) {
    at::Tensor tensor = at::ones({1000});
    group.all_reduce(tensor);
    std::fprintf(out, "ready\n");
    if (group.rank() == 2) {
      while (true) pause();
    }
    group.all_reduce(tensor);
    std::fprintf(out, "no error\n");
  });
  for (int rank : {0, 1, 2}) ASSERT_EQ(ranks.line(rank), "ready\n");
  const absl::Time killed = Clock::system().now();
  kill(ranks.process(2), SIGKILL);
  for (int survivor : {0, 1}) {
    const std::string error = ranks.line(survivor);
    EXPECT_TRUE(absl::StrContains(error, "rank 2")) << error;
  }
  // The documentation promises one second; the limit is larger because the machine may be busy.
  EXPECT_LT(Clock::system().now() - killed, absl::Seconds(20));
}

TEST_P(Failures, ATimeoutNamesTheRanksThatDidNotArrive) {
  const RankProcesses ranks({.size = 3, .world = world(), .timeout = absl::Seconds(6)},
                            [](ProcessGroup& group, std::FILE* out) {
                              at::Tensor tensor = at::ones({1000});
                              group.all_reduce(tensor);
                              std::fprintf(out, "ready\n");
                              if (group.rank() == 1) {
                                while (true) pause();
                              }
                              group.all_reduce(tensor);
                              std::fprintf(out, "no error\n");
                            });
  for (int rank : {0, 1, 2}) ASSERT_EQ(ranks.line(rank), "ready\n");
  for (int waiting : {0, 2}) {
    const std::string error = ranks.line(waiting);
    EXPECT_TRUE(absl::StrContains(error, "rank 1")) << error;
  }
}

TEST_P(Failures, ARankThatLeavesEndsTheOperationOfTheOthers) {
  const RankProcesses ranks({.size = 2, .world = world()}, [](ProcessGroup& group, std::FILE* out) {
    at::Tensor tensor = at::ones({1});
    group.all_reduce(tensor);
    if (group.rank() == 1) {
      group.destroy();
      std::fprintf(out, "left\n");
      return;
    }
    group.all_reduce(tensor);
    std::fprintf(out, "no error\n");
  });
  ASSERT_EQ(ranks.line(1), "left\n");
  const std::string error = ranks.line(0);
  EXPECT_TRUE(absl::StrContains(error, "rank 1")) << error;
}

INSTANTIATE_TEST_SUITE_P(Worlds, Failures, ::testing::Range(0, 2),
                         [](const auto& info) { return info.param == 0 ? "SharedMemory" : "Messages"; });

}  // namespace
}  // namespace gradwire::collectives
