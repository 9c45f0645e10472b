// Worlds that come together by each init method, from real processes.
#include <ATen/ops/full.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/free_port.h"
#include "gradwire/collectives/functions.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/collectives/world.h"
#include "gradwire/store/file_store.h"
#include "gradwire/tests/collectives/inputs.h"
#include "gradwire/tests/collectives/rank_processes.h"
#include "gradwire/tests/collectives/rendezvous_points.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

// How one rank of a world finds the others.
using Place = std::function<ProcessGroupOptions(int rank, int size)>;

// Joins a world and sees that nobody of another is in it.
void join(const Place& place, int rank, int size, const std::string& name, int64_t brought) {
  ProcessGroupOptions options = place(rank, size);
  options.group_name = name;
  const auto group = init_process_group(options);
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

Place by(const std::string& method, bool ranks_are_given) {
  return [=](int rank, int size) {
    return ProcessGroupOptions{
        .init_method = method, .world_size = size, .rank = ranks_are_given ? rank : -1};
  };
}

Place by_environment() {
  return [port = free_port()](int rank, int size) {
    set_environment(port, rank, size);
    return ProcessGroupOptions{};
  };
}

Place by_store() {
  return [path = file_method().substr(std::string("file://").size())](int rank, int size) {
    return ProcessGroupOptions{
        .world_size = size, .rank = rank, .store = std::make_shared<store::FileStore>(path)};
  };
}

struct Method {
  std::string name;
  Place (*make)();
  bool ranks_are_given = true;
};

class InitMethods : public ::testing::TestWithParam<Method> {};
class InitMethodsWithRanks : public InitMethods {};

TEST_P(InitMethods, ThreeProcessesAreAWorld) {
  const Place place = GetParam().make();
  const RankProcesses ranks(3, [&](int rank, std::FILE* says) {
    join(place, rank, 3, "", 7);
    stay(says);
  });
  expect_done(ranks);
}

TEST_P(InitMethods, WorldsOfTwoNamesAtOneAddressDoNotMix) {
  const Place place = GetParam().make();
  const RankProcesses ranks(4, [&](int process, std::FILE* says) {
    const int world = process % 2;
    join(place, process / 2, 2, world == 0 ? "red" : "red:1", 10 + world);
    stay(says);
  });
  expect_done(ranks);
}

// Who is not told waits for the 30 minutes that a world has to come together.
TEST_P(InitMethods, WorldSizesThatDifferAreToldToBoth) {
  for (const int first : {2, 3}) {
    const Place place = GetParam().make();
    const RankProcesses ranks(
        2, [&](int rank, std::FILE*) { join(place, rank, rank == 0 ? first : 5 - first, "", 7); });
    for (const int rank : {0, 1}) {
      const std::string error = ranks.line(rank);
      EXPECT_TRUE(absl::StrContains(error, "world_size=2") && absl::StrContains(error, "world_size=3"))
          << error;
    }
  }
}

TEST_P(InitMethodsWithRanks, RankThatTwoProcessesClaimIsToldToBoth) {
  const Place place = GetParam().make();
  const RankProcesses ranks(3, [&](int process, std::FILE*) { join(place, process > 0 ? 1 : 0, 3, "", 7); });
  for (const int process : {0, 1, 2}) {
    const std::string error = ranks.line(process);
    EXPECT_TRUE(absl::StrContains(error, "two processes came as rank 1: process ")) << error;
    for (const int each : {1, 2}) {
      EXPECT_TRUE(absl::StrContains(error, absl::StrCat("process ", ranks.process(each), " on "))) << error;
    }
  }
}

TEST_P(InitMethods, ProcessInExcessOfACompleteWorldIsTold) {
  const Place place = GetParam().make();
  int gates[3][2];
  for (auto& gate : gates) ASSERT_EQ(pipe(gate), 0);
  // The ranks 0 and 1 of a world of 2; then one more of each, and a rank 2 of a world of 3.
  const RankProcesses ranks(5, [&](int process, std::FILE* says) {
    if (process < 2) {
      join(place, process, 2, "", 7);
      stay(says);
    }
    char go = 0;
    if (read(gates[process - 2][0], &go, 1) == 1) join(place, process - 2, process == 4 ? 3 : 2, "", 7);
  });
  for (const int rank : {0, 1}) ASSERT_EQ(ranks.line(rank), "done\n");
  // One at a time: together they would hear of each other by multicast.
  const auto error_of = [&](int process) {
    EXPECT_EQ(write(gates[process - 2][1], "!", 1), 1);
    return ranks.line(process);
  };
  for (const int rank : {0, 1}) {
    const std::string error = error_of(rank + 2);
    if (GetParam().ranks_are_given) {
      EXPECT_TRUE(absl::StrContains(error, absl::StrCat("rank ", rank, " of 2 is taken"))) << error;
      EXPECT_TRUE(absl::StrContains(error, absl::StrCat("process ", ranks.process(rank), " on "))) << error;
    } else {
      EXPECT_TRUE(absl::StrContains(error, "the group is full")) << error;
    }
  }
  const std::string error = error_of(4);
  EXPECT_TRUE(absl::StrContains(error, "world_size=2") && absl::StrContains(error, "world_size=3")) << error;
  for (const auto& gate : gates) {
    close(gate[0]);
    close(gate[1]);
  }
}

std::vector<Method> with_ranks() {
  return {{"Env", &by_environment},
          {"Store", &by_store},
          {"Tcp", +[] { return by(tcp_method(), true); }},
          {"Multicast", +[] { return by(multicast_method(), true); }},
          {"File", +[] { return by(file_method(), true); }}};
}

std::vector<Method> without_ranks() {
  return {{"TcpWithoutRanks", +[] { return by(tcp_method(), false); }, false},
          {"MulticastWithoutRanks", +[] { return by(multicast_method(), false); }, false},
          {"FileWithoutRanks", +[] { return by(file_method(), false); }, false}};
}

std::string name_of(const ::testing::TestParamInfo<Method>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Kinds, InitMethods, ::testing::ValuesIn(with_ranks()), name_of);
INSTANTIATE_TEST_SUITE_P(WithoutRanks, InitMethods, ::testing::ValuesIn(without_ranks()), name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, InitMethodsWithRanks, ::testing::ValuesIn(with_ranks()), name_of);

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
