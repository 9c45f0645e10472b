// Runs the conformance suite on the cpu backend, with threads as ranks. collectives/mpi runs it on MPI.
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/collectives/cases.h"
#include "gradwire/tests/collectives/worlds.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

const World kWorlds[] = {{"SharedMemory", "cpu", {}}, {"Messages", "cpu", {{"shared_memory", "off"}}}};

class Conformance : public testing::TestWithParam<std::tuple<int, World, Case>> {};

TEST_P(Conformance, Holds) {
  const auto& [size, world, what] = GetParam();
  in_world(size, world, what.run);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Conformance,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 8), testing::ValuesIn(kWorlds),
                                          testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<2>(info.param).name, std::get<0>(info.param), "Ranks",
                                               std::get<1>(info.param).name);
                         });

}  // namespace
}  // namespace gradwire::collectives
