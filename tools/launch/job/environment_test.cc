#include "gradwire/tools/launch/job/environment.h"

#include <gtest/gtest.h>

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

TEST(LayOutRanks, RanksRunThroughNodesOfTwoRolesAndSizes) {
  const std::vector<NodeEntry> nodes = {{"a", "a", {{"ps", 1}}},
                                        {"b", "b", {{"trainer", 3}}},
                                        {"c", "c", {{"ps", 2}}},
                                        {"d", "d", {{"trainer", 2}}}};
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

TEST(LayOutRanks, RolesOfANodeAreLaidOutInTheirOrder) {
  const std::vector<NodeEntry> nodes = {{"a", "a", {{"server", 1}, {"trainer", 2}}},
                                        {"b", "b", {{"trainer", 2}, {"server", 1}}}};
  struct Row {
    int rank;
    std::string role;
    int role_rank;
    int role_world_size;
    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;
  for (int node : {0, 1}) {
    absl::StatusOr<std::vector<WorkerPlace>> places = lay_out_ranks(nodes, node);
    ASSERT_TRUE(places.ok());
    for (const WorkerPlace& place : *places) {
      EXPECT_EQ(place.local_world_size, 3);
      EXPECT_EQ(place.local_rank, place.rank - 3 * node);
      rows.push_back({place.rank, place.role, place.role_rank, place.role_world_size});
    }
  }
  EXPECT_EQ(rows, (std::vector<Row>{{0, "server", 0, 2},
                                    {1, "trainer", 0, 4},
                                    {2, "trainer", 1, 4},
                                    {3, "trainer", 2, 4},
                                    {4, "trainer", 3, 4},
                                    {5, "server", 1, 2}}));
}

TEST(LocalName, CountsWithinTheRole) {
  const std::vector<RoleCount> roles = {{"server", 1}, {"trainer", 2}};
  EXPECT_EQ(local_name(roles, 0), "server0");
  EXPECT_EQ(local_name(roles, 1), "trainer0");
  EXPECT_EQ(local_name(roles, 2), "trainer1");
  EXPECT_EQ(local_name({{"default", 4}}, 3), "default3");
}

TEST(LayOutRanks, TooManyWorkersAreRefused) {
  const std::vector<NodeEntry> nodes(2048, NodeEntry{"a", "a", {{"r", 1 << 20}}});
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
  const auto environment = as_map(worker_environment({"PATH=/bin", "RANK=9", "EMPTY=", "RANKS=kept"}, place,
                                                     {.master_addr = "host",
                                                      .master_port = 1234,
                                                      .run_id = "job",
                                                      .restart_count = 2,
                                                      .max_restarts = 3,
                                                      .round = 4},
                                                     "/logs/error.json"));
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
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
      {"GRADWIRE_ROUND", "4"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"OMP_NUM_THREADS", "1"},
  };
  EXPECT_EQ(environment, expected);
}

TEST(WorkerEnvironment, ErrorFileOfTheLauncherIsNotPassedOn) {
  const auto environment = as_map(worker_environment({"TORCHELASTIC_ERROR_FILE=/outer/error.json"}, {}, {}));
  EXPECT_EQ(environment.count("TORCHELASTIC_ERROR_FILE"), 0u);
}

TEST(WorkerEnvironment, OmpNumThreadsOfTheUserStays) {
  const auto environment = as_map(worker_environment({"OMP_NUM_THREADS=7"}, {}, {}));
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "7");
}

}  // namespace
}  // namespace gradwire::tools
