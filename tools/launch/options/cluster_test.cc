#include "gradwire/tools/launch/options/cluster.h"

#include <gtest/gtest.h>

#include <map>

namespace gradwire::tools {
namespace {

using Environment = std::map<std::string, std::string>;
using Hosts = std::vector<std::string>;

absl::StatusOr<std::optional<ClusterPlace>> read(const Environment& environment) {
  return read_cluster([&environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end() || found->second.empty()) return std::nullopt;
    return found->second;
  });
}

// Reads a place; fails the test if no system is found.
ClusterPlace place_of(const Environment& environment) {
  absl::StatusOr<std::optional<ClusterPlace>> place = read(environment);
  EXPECT_TRUE(place.ok()) << place.status();
  EXPECT_TRUE(place.ok() && place->has_value());
  return place.ok() ? place->value_or(ClusterPlace{}) : ClusterPlace{};
}

// The variables that srun sets for each of its tasks.
const Environment kStep = {{"SLURM_JOB_ID", "4711"},
                           {"SLURM_STEP_ID", "2"},
                           {"SLURM_NNODES", "8"},
                           {"SLURM_STEP_NUM_NODES", "3"},
                           {"SLURM_STEP_NUM_TASKS", "3"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_JOB_NODELIST", "gpu[001-008]"},
                           {"SLURM_STEP_NODELIST", "gpu[004-006]"}};

Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

TEST(ReadCluster, NoSystemGivesNullopt) {
  EXPECT_FALSE(read({{"RANK", "3"}})->has_value());
  EXPECT_FALSE(read({{"SLURM_JOB_ID", ""}})->has_value());
}

TEST(ReadCluster, SlurmStepProvidesAll) {
  const ClusterPlace place = place_of(kStep);
  EXPECT_EQ(place.system, "Slurm");
  EXPECT_EQ(place.nnodes, 3);
  EXPECT_EQ(place.node_rank, 1);
  EXPECT_EQ(place.master_addr, "gpu004");
  EXPECT_EQ(place.run_id, "4711.2");
  EXPECT_EQ(place.note, "");
}

TEST(ReadCluster, OlderNamesOfSlurmAreRead) {
  const ClusterPlace place = place_of({{"SLURM_JOB_ID", "7"},
                                       {"SLURM_STEPID", "0"},
                                       {"SLURM_JOB_NUM_NODES", "2"},
                                       {"SLURM_NTASKS", "2"},
                                       {"SLURM_NODEID", "0"},
                                       {"SLURM_JOB_NODELIST", "a,b"}});
  EXPECT_EQ(place.nnodes, 2);
  EXPECT_EQ(place.node_rank, 0);
  EXPECT_EQ(place.master_addr, "a");
}

TEST(ReadCluster, ListOfAnotherLengthGivesNoAddress) {
  EXPECT_FALSE(place_of(with(kStep, {{"SLURM_STEP_NODELIST", ""}})).master_addr.has_value());
}

TEST(ReadCluster, LauncherAloneInAnAllocationIsOneNodeWithANote) {
  // The variables of a batch script, in which SLURM_NODEID and SLURM_PROCID are 0.
  const ClusterPlace place = place_of({{"SLURM_JOB_ID", "4711"},
                                       {"SLURM_NNODES", "4"},
                                       {"SLURM_NTASKS", "4"},
                                       {"SLURM_NODEID", "0"},
                                       {"SLURM_PROCID", "0"},
                                       {"SLURM_JOB_NODELIST", "gpu[1-4]"}});
  EXPECT_FALSE(place.nnodes.has_value());
  EXPECT_FALSE(place.node_rank.has_value());
  EXPECT_FALSE(place.master_addr.has_value());
  EXPECT_EQ(place.run_id, "4711");
  EXPECT_NE(place.note.find("4 nodes"), std::string::npos);
  EXPECT_NE(place.note.find("srun"), std::string::npos);
}

TEST(ReadCluster, SeveralLaunchersOnANodeAreNotNodes) {
  const ClusterPlace slurm = place_of(with(kStep, {{"SLURM_STEP_NUM_TASKS", "6"}}));
  EXPECT_EQ(slurm.launchers_per_node, 2);
  EXPECT_FALSE(slurm.nnodes.has_value());
  const ClusterPlace mpi = place_of(
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(mpi.launchers_per_node, 4);
  EXPECT_FALSE(mpi.node_rank.has_value());
}

TEST(ReadCluster, OpenMpiProvidesRankAndSizeAlsoInsideSlurm) {
  const ClusterPlace place = place_of(with(
      kStep,
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}));
  EXPECT_EQ(place.system, "Open MPI");
  EXPECT_EQ(place.nnodes, 4);
  EXPECT_EQ(place.node_rank, 2);
  EXPECT_FALSE(place.master_addr.has_value());
}

TEST(ReadCluster, KubernetesProvidesOnlyTheRank) {
  const ClusterPlace place = place_of({{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_EQ(place.system, "Kubernetes");
  EXPECT_EQ(place.node_rank, 2);
  EXPECT_FALSE(place.nnodes.has_value());
}

TEST(ReadCluster, WrongVariablesAreNamed) {
  const std::vector<std::pair<Environment, std::string>> rows = {
      {with(kStep, {{"SLURM_NODEID", "3"}}), "SLURM_NODEID=\"3\" is not in 0..2"},
      {with(kStep, {{"SLURM_NODEID", ""}}), "SLURM_NODEID"},
      {with(kStep, {{"SLURM_STEP_NUM_NODES", "many"}}), "SLURM_STEP_NUM_NODES=\"many\""},
      {with(kStep, {{"SLURM_STEP_NODELIST", "gpu[1"}}), "SLURM_STEP_NODELIST"},
      {{{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}, "OMPI_COMM_WORLD_RANK"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}}, "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {{{"JOB_COMPLETION_INDEX", "-1"}}, "JOB_COMPLETION_INDEX"}};
  for (const auto& [environment, named] : rows) {
    const absl::Status status = read(environment).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << named;
    EXPECT_NE(status.message().find(named), absl::string_view::npos) << status;
  }
}

TEST(ExpandHostList, NamesRangesAndBracketsAreExpandedInOrder) {
  const std::vector<std::pair<std::string, Hosts>> rows = {
      {"login1", {"login1"}},
      {"a,b.c.d", {"a", "b.c.d"}},
      {"gpu[001-003,7],login1", {"gpu001", "gpu002", "gpu003", "gpu7", "login1"}},
      {"n[9-11]", {"n9", "n10", "n11"}},
      {"n[08-10]-ib", {"n08-ib", "n09-ib", "n10-ib"}},
      {"r[1-2]n[01-02]", {"r1n01", "r1n02", "r2n01", "r2n02"}},
  };
  for (const auto& [list, hosts] : rows) {
    absl::StatusOr<Hosts> expanded = expand_host_list(list);
    ASSERT_TRUE(expanded.ok()) << list << ": " << expanded.status();
    EXPECT_EQ(*expanded, hosts) << list;
  }
}

TEST(ExpandHostList, MalformedListIsRefused) {
  for (const char* list :
       {"", ",", "a,", ",a", "a[", "a[]", "a]", "a[1-]", "a[-1]", "a[3-1]", "a[1-2-3]", "a[x]", "a[1[2]]",
        "a b", "a\x1b[1]", "a[1-9999999999]", "a[0-99999]", "a[0-999][0-999]", "a[0-65535],b"}) {
    EXPECT_EQ(expand_host_list(list).status().code(), absl::StatusCode::kInvalidArgument) << list;
  }
}

}  // namespace
}  // namespace gradwire::tools
