// Tests that processes can make a world with each init method.
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

// Returns the options with which one rank of a world finds the others.
using OptionsFactory = std::function<ProcessGroupOptions(int rank, int size)>;

// Joins a world. Checks with a sum that no rank of another world is in it: the worlds use different values.
void join(const OptionsFactory& options_of, int rank, int size, const std::string& name, int64_t value) {
  ProcessGroupOptions options = options_of(rank, size);
  options.group_name = name;
  const auto group = init_process_group(options);
  const at::Tensor tensor = at::full({1}, value, at::kLong);
  group->all_reduce(tensor);
  expect_equal(tensor, at::full({1}, value * size, at::kLong), "the sum over the world " + name);
}

// Reports that the process is done, and stays alive until the test kills it: the process that hosts a shared
// store must outlive all worlds that use the store.
[[noreturn]] void stay(std::FILE* out) {
  std::fprintf(out, "done\n");
  while (true) pause();
}

void expect_done(const RankProcesses& ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_EQ(ranks.line(rank), "done\n") << "process " << rank;
}

OptionsFactory with_method(const std::string& method, bool ranks_are_given) {
  return [=](int rank, int size) {
    return ProcessGroupOptions{.init_method = method,
                               .world_size = size,
                               .rank = ranks_are_given ? rank : -1,
                               .security = {.insecure = true}};
  };
}

OptionsFactory with_environment() {
  return [port = free_port()](int rank, int size) {
    set_environment(port, rank, size);
    return ProcessGroupOptions{};
  };
}

OptionsFactory with_store() {
  return [path = file_method().substr(std::string("file://").size())](int rank, int size) {
    return ProcessGroupOptions{
        .world_size = size, .rank = rank, .store = std::make_shared<store::FileStore>(path)};
  };
}

struct Method {
  std::string name;
  OptionsFactory (*make)();
  bool ranks_are_given = true;
};

class InitMethods : public ::testing::TestWithParam<Method> {};
class InitMethodsWithRanks : public InitMethods {};

TEST_P(InitMethods, ThreeProcessesMakeAWorld) {
  const OptionsFactory options_of = GetParam().make();
  const RankProcesses ranks(3, [&](int rank, std::FILE* out) {
    join(options_of, rank, 3, "", 7);
    stay(out);
  });
  expect_done(ranks);
}

TEST_P(InitMethods, WorldsOfTwoNamesAtOneAddressDoNotMix) {
  const OptionsFactory options_of = GetParam().make();
  const RankProcesses ranks(4, [&](int process, std::FILE* out) {
    const int world = process % 2;
    join(options_of, process / 2, 2, world == 0 ? "red" : "red:1", 10 + world);
    stay(out);
  });
  expect_done(ranks);
}

// A process that does not get the error would wait for the default timeout of 30 minutes.
TEST_P(InitMethods, WorldSizesThatDifferAreReportedToBoth) {
  for (const int first : {2, 3}) {
    const OptionsFactory options_of = GetParam().make();
    const RankProcesses ranks(
        2, [&](int rank, std::FILE*) { join(options_of, rank, rank == 0 ? first : 5 - first, "", 7); });
    for (const int rank : {0, 1}) {
      const std::string error = ranks.line(rank);
      EXPECT_TRUE(absl::StrContains(error, "world_size=2") && absl::StrContains(error, "world_size=3"))
          << error;
    }
  }
}

TEST_P(InitMethodsWithRanks, RankThatTwoProcessesClaimIsReportedToBoth) {
  const OptionsFactory options_of = GetParam().make();
  const RankProcesses ranks(
      3, [&](int process, std::FILE*) { join(options_of, process > 0 ? 1 : 0, 3, "", 7); });
  for (const int process : {0, 1, 2}) {
    const std::string error = ranks.line(process);
    EXPECT_TRUE(absl::StrContains(error, "rank 1 is claimed by two processes: process ")) << error;
    for (const int each : {1, 2}) {
      EXPECT_TRUE(absl::StrContains(error, absl::StrCat("process ", ranks.process(each), " on "))) << error;
    }
  }
}

TEST_P(InitMethods, SurplusProcessIsRefusedByACompleteWorld) {
  const OptionsFactory options_of = GetParam().make();
  int gates[3][2];
  for (auto& gate : gates) ASSERT_EQ(pipe(gate), 0);
  // Processes 0 and 1 make a world of 2. Processes 2 and 3 then claim the ranks 0 and 1 again, and process 4
  // wants to be rank 2 of a world of 3.
  const RankProcesses ranks(5, [&](int process, std::FILE* out) {
    if (process < 2) {
      join(options_of, process, 2, "", 7);
      stay(out);
    }
    char go = 0;
    if (read(gates[process - 2][0], &go, 1) == 1) join(options_of, process - 2, process == 4 ? 3 : 2, "", 7);
  });
  for (const int rank : {0, 1}) ASSERT_EQ(ranks.line(rank), "done\n");
  // Start the surplus processes one at a time: together they could find one another by multicast.
  const auto error_of = [&](int process) {
    EXPECT_EQ(write(gates[process - 2][1], "!", 1), 1);
    return ranks.line(process);
  };
  for (const int rank : {0, 1}) {
    const std::string error = error_of(rank + 2);
    if (GetParam().ranks_are_given) {
      EXPECT_TRUE(absl::StrContains(error, absl::StrCat("rank ", rank, " of 2 is already taken"))) << error;
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
  return {{"Env", &with_environment},
          {"Store", &with_store},
          {"Tcp", +[] { return with_method(tcp_method(), true); }},
          {"Multicast", +[] { return with_method(multicast_method(), true); }},
          {"File", +[] { return with_method(file_method(), true); }}};
}

std::vector<Method> without_ranks() {
  return {{"TcpWithoutRanks", +[] { return with_method(tcp_method(), false); }, false},
          {"MulticastWithoutRanks", +[] { return with_method(multicast_method(), false); }, false},
          {"FileWithoutRanks", +[] { return with_method(file_method(), false); }, false}};
}

std::string name_of(const ::testing::TestParamInfo<Method>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Kinds, InitMethods, ::testing::ValuesIn(with_ranks()), name_of);
INSTANTIATE_TEST_SUITE_P(WithoutRanks, InitMethods, ::testing::ValuesIn(without_ranks()), name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, InitMethodsWithRanks, ::testing::ValuesIn(with_ranks()), name_of);

TEST(InitMethod, SecondWorldOfAProcessIsRefused) {
  const std::string method = tcp_method();
  const RankProcesses ranks(2, [&](int rank, std::FILE* out) {
    const ProcessGroupOptions options{.init_method = method, .world_size = 2, .rank = rank};
    init_process_group(options);
    try {
      init_process_group(options);
    } catch (const std::exception& error) {
      std::fprintf(out, "%s\n", error.what());
    }
    barrier();
  });
  for (int rank : {0, 1}) {
    const std::string error = ranks.line(rank);
    EXPECT_TRUE(absl::StrContains(error, absl::StrCat("already has a world and is its rank ", rank, " of 2")))
        << error;
  }
}

TEST(InitMethod, BackendsThatDifferAreNamed) {
  const std::string method = tcp_method();
  const RankProcesses ranks(2, [&](int rank, std::FILE*) {
    // Register a second backend, so that the two ranks can ask for different ones.
    testing::use_local_backend(Backend::kMpi);
    init_process_group(
        {.backend = rank == 0 ? "cpu" : "mpi", .init_method = method, .world_size = 2, .rank = rank});
  });
  // Rank 0 hosts the store, and keeps it until rank 1 has read the error.
  for (int rank = 0; rank < 2; ++rank) {
    const std::string error = ranks.line(rank);
    EXPECT_TRUE(absl::StrContains(error, "rank 0 has backend=cpu, rank 1 has backend=mpi")) << error;
  }
}

}  // namespace
}  // namespace gradwire::collectives
