// Runs the conformance suite on the cpu backend, with threads as ranks. collectives/mpi runs it on MPI.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/tests/collectives/cases.h"
#include "gradwire/tests/collectives/worlds.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

const World kWorlds[] = {{"SharedMemory", "cpu", {}}, {"Messages", "cpu", {{"shared_memory", "off"}}}};

class Conformance : public ::testing::TestWithParam<std::tuple<int, World, Case>> {};

TEST_P(Conformance, Holds) {
  const auto& [size, world, what] = GetParam();
  in_world(size, world, what.run);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Conformance,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8), ::testing::ValuesIn(kWorlds),
                                            ::testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<2>(info.param).name, std::get<0>(info.param), "Ranks",
                                               std::get<1>(info.param).name);
                         });

// One rank has a wrong shape for another rank's tensor. It fails, and no rank returns other values than those
// that were sent.
class WrongShapeForAllGather : public ::testing::TestWithParam<std::tuple<World, int64_t, int64_t>> {};

TEST_P(WrongShapeForAllGather, FailsOnThatRank) {
  const World& world = std::get<0>(GetParam());
  const int64_t count = std::get<1>(GetParam()), wrong = std::get<2>(GetParam());
  in_world(3, world, [&](ProcessGroup& all) {
    // Over messages the error breaks this group, but not the world.
    const std::shared_ptr<ProcessGroup> own = all.new_group();
    ProcessGroup& group = *own;
    std::vector<at::Tensor> list;
    for (int rank = 0; rank < 3; ++rank)
      list.push_back(at::zeros({group.rank() == 0 && rank == 1 ? wrong : count}));
    const absl::Status status =
        status_of([&] { group.all_gather(list, at::full({count}, 1.0 + group.rank())); });
    if (group.rank() == 0) EXPECT_FALSE(status.ok());
    if (world.name == "SharedMemory")
      EXPECT_EQ(status.code(), group.rank() == 0 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kOk)
          << status;
    if (!status.ok()) return;
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(list[rank].equal(at::full({count}, 1.0 + rank)));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, WrongShapeForAllGather,
                         ::testing::Combine(::testing::ValuesIn(kWorlds), ::testing::Values(3, 100000),
                                            ::testing::Values(2, 4)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name, std::get<1>(info.param), "Not",
                                               std::get<2>(info.param));
                         });

}  // namespace
}  // namespace gradwire::collectives
