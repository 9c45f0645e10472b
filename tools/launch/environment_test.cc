#include "tools/launch/environment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace gradwire::tools {
namespace {

std::map<std::string, std::string> as_map(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> result;
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    EXPECT_TRUE(result.emplace(variable.substr(0, equals), variable.substr(equals + 1)).second)
        << variable << " twice";
  }
  return result;
}

TEST(LayOutRanks, NodesOfTwoRolesAndSizesAreNumberedThrough) {
  const std::vector<NodeEntry> nodes = {
      {"a", "ps", 1}, {"b", "trainer", 3}, {"c", "ps", 2}, {"d", "trainer", 2}};
  absl::StatusOr<std::vector<WorkerPlace>> places = lay_out_ranks(nodes, 3);
  ASSERT_TRUE(places.ok());
  ASSERT_EQ(places->size(), 2u);
  const WorkerPlace& last = places->back();
  EXPECT_EQ(last.rank, 7);
  EXPECT_EQ(last.world_size, 8);
  EXPECT_EQ(last.local_rank, 1);
  EXPECT_EQ(last.local_world_size, 2);
  EXPECT_EQ(last.group_rank, 3);
  EXPECT_EQ(last.group_world_size, 4);
  EXPECT_EQ(last.role, "trainer");
  EXPECT_EQ(last.role_rank, 4);
  EXPECT_EQ(last.role_world_size, 5);
}

TEST(LayOutRanks, TooManyWorkersAreRefused) {
  const std::vector<NodeEntry> nodes(2048, NodeEntry{"a", "r", 1 << 20});
  EXPECT_EQ(lay_out_ranks(nodes, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WorkerEnvironment, EveryVariableOfTorchrunIsSet) {
  const WorkerPlace place{.rank = 5,
                          .world_size = 8,
                          .local_rank = 1,
                          .local_world_size = 4,
                          .group_rank = 1,
                          .group_world_size = 2,
                          .role = "trainer",
                          .role_rank = 3,
                          .role_world_size = 6};
  const auto environment =
      as_map(worker_environment({"PATH=/bin", "RANK=9", "EMPTY=", "RANKS=kept"}, place,
                                {.master_addr = "host", .master_port = 1234, .run_id = "job"}));
  const std::map<std::string, std::string> expected = {
      {"PATH", "/bin"},
      {"EMPTY", ""},
      {"RANKS", "kept"},
      {"RANK", "5"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_NAME", "trainer"},
      {"ROLE_RANK", "3"},
      {"ROLE_WORLD_SIZE", "6"},
      {"MASTER_ADDR", "host"},
      {"MASTER_PORT", "1234"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"OMP_NUM_THREADS", "1"},
  };
  EXPECT_EQ(environment, expected);
}

TEST(WorkerEnvironment, OmpNumThreadsOfTheUserStays) {
  const auto environment = as_map(worker_environment({"OMP_NUM_THREADS=7"}, {}, {}));
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "7");
}

}  // namespace
}  // namespace gradwire::tools
