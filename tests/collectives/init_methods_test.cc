// Worlds that come together by each init method, from real processes.
#include <ATen/ops/full.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/functions.h"
#include "collectives/testing/local_backend.h"
#include "collectives/world.h"
#include "gtest/gtest.h"
#include "store/file_store.h"
#include "tests/collectives/inputs.h"
#include "tests/collectives/rank_processes.h"
#include "tests/collectives/rendezvous_points.h"

namespace gradwire::collectives {
namespace {

// Joins a world and sees that nobody of another is in it.
void join(const std::string& method, int rank, int size, const std::string& name, int64_t brought,
          absl::Duration timeout = absl::Minutes(1)) {
  const bool by_environment = method == "env://";
  const auto group = init_process_group({.init_method = method,
                                         .timeout = timeout,
                                         .world_size = by_environment ? -1 : size,
                                         .rank = by_environment ? -1 : rank,
                                         .group_name = name});
  const at::Tensor tensor = at::full({1}, brought, at::kLong);
  group->all_reduce(tensor);
  expect_equal(tensor, at::full({1}, brought * size, at::kLong), "the sum over the world " + name);
}

// Whoever hosts a store that worlds share must outlive them all: nobody ends before the test does.
[[noreturn]] void stay(std::FILE* says) {
  std::fprintf(says, "done\n");
  while (true) pause();
}

void expect_done(const RankProcesses& ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_EQ(ranks.line(rank), "done\n") << "process " << rank;
}

struct Method {
  std::string name;
  std::string (*make)();
  bool ranks_are_given;
};

class InitMethods : public ::testing::TestWithParam<Method> {};

TEST_P(InitMethods, ThreeProcessesAreAWorld) {
  const std::string method = GetParam().make();
  const RankProcesses ranks(3, [&](int rank, std::FILE* says) {
    join(method, GetParam().ranks_are_given ? rank : -1, 3, "", 7);
    stay(says);
  });
  expect_done(ranks);
}

TEST_P(InitMethods, WorldsOfTwoNamesAtOneAddressDoNotMix) {
  const std::string method = GetParam().make();
  const RankProcesses ranks(4, [&](int process, std::FILE* says) {
    const int world = process % 2;
    join(method, GetParam().ranks_are_given ? process / 2 : -1, 2, world == 0 ? "red" : "red/1", 10 + world);
    stay(says);
  });
  expect_done(ranks);
}

TEST_P(InitMethods, WorldSizesThatDifferAreNamed) {
  const std::string method = GetParam().make();
  const RankProcesses ranks(2, [&](int rank, std::FILE*) {
    join(method, GetParam().ranks_are_given ? rank : -1, 2 + rank, "", 7, absl::Seconds(5));
  });
  // The one that came second learns of it; the first may only see that nobody else comes.
  const std::string errors = ranks.line(0) + ranks.line(1);
  EXPECT_TRUE(absl::StrContains(errors, "2") && absl::StrContains(errors, "3")) << errors;
  EXPECT_TRUE(absl::StrContains(errors, "world size")) << errors;
}

INSTANTIATE_TEST_SUITE_P(Kinds, InitMethods,
                         ::testing::Values(Method{"Tcp", &tcp_method, true},
                                           Method{"TcpWithoutRanks", &tcp_method, false},
                                           Method{"Multicast", &multicast_method, true},
                                           Method{"MulticastWithoutRanks", &multicast_method, false},
                                           Method{"File", &file_method, true},
                                           Method{"FileWithoutRanks", &file_method, false}),
                         [](const auto& info) { return info.param.name; });

TEST(InitMethod, EnvironmentNamesTheWorld) {
  const int port = free_port();
  const RankProcesses ranks(3, [&](int rank, std::FILE* says) {
    set_environment(port, rank, 3);
    join("env://", -1, 3, "", 7);
    stay(says);
  });
  expect_done(ranks);
}

TEST(InitMethod, EnvironmentServesWorldsOfTwoNames) {
  const int port = free_port();
  const RankProcesses ranks(4, [&](int process, std::FILE* says) {
    set_environment(port, process / 2, 2);
    join("env://", -1, 2, process % 2 == 0 ? "red" : "blue", 10 + process % 2);
    stay(says);
  });
  expect_done(ranks);
}

TEST(InitMethod, StoreOfTheCallerServesWorldsOfTwoNames) {
  const std::string path = file_method().substr(std::string("file://").size());
  const RankProcesses ranks(4, [&](int process, std::FILE* says) {
    const auto store = std::make_shared<store::FileStore>(path);
    init_process_group({.world_size = 2,
                        .rank = process / 2,
                        .store = store,
                        .group_name = process % 2 == 0 ? "red" : "blue"});
    const at::Tensor tensor = at::full({1}, process % 2 + 1, at::kLong);
    all_reduce(tensor);
    expect_equal(tensor, at::full({1}, 2 * (process % 2 + 1), at::kLong), "the sum");
    stay(says);
  });
  expect_done(ranks);
}

TEST(InitMethod, SecondWorldOfAProcessIsRefused) {
  const std::string method = tcp_method();
  const RankProcesses ranks(2, [&](int rank, std::FILE* says) {
    const ProcessGroupOptions options{.init_method = method, .world_size = 2, .rank = rank};
    init_process_group(options);
    try {
      init_process_group(options);
    } catch (const std::exception& error) {
      std::fprintf(says, "%s\n", error.what());
    }
    barrier();
  });
  for (int rank : {0, 1}) {
    const std::string error = ranks.line(rank);
    EXPECT_TRUE(absl::StrContains(error, absl::StrCat("rank ", rank, " of 2 already"))) << error;
  }
}

TEST(InitMethod, BackendsThatDifferAreNamed) {
  const std::string method = tcp_method();
  const RankProcesses ranks(2, [&](int rank, std::FILE*) {
    // Any other backend than the cpu's.
    testing::use_local_backend(Backend::kMpi);
    init_process_group(
        {.backend = rank == 0 ? "cpu" : "mpi", .init_method = method, .world_size = 2, .rank = rank});
  });
  // Rank 0 hosts the store, and keeps it until rank 1 has read there what rank 0 says.
  for (int rank = 0; rank < 2; ++rank) {
    const std::string error = ranks.line(rank);
    EXPECT_TRUE(absl::StrContains(error, "rank 0 says backend=cpu, rank 1 says backend=mpi")) << error;
  }
}

}  // namespace
}  // namespace gradwire::collectives
