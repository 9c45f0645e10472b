#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gradwire/rpc/callee/server.h"

namespace gradwire::rpc {
namespace {

// The strands of these tests run no task.
const std::shared_ptr<Executor> kNoExecutor;

TEST(OrderStrands, AKeyKeepsItsStrandWhileItIsInUse) {
  OrderStrands strands(kNoExecutor);
  const std::shared_ptr<Strand> strand = strands.find(1, 7);
  EXPECT_EQ(strands.find(1, 7), strand);
  EXPECT_NE(strands.find(1, 8), strand);
  EXPECT_NE(strands.find(2, 7), strand);
}

TEST(OrderStrands, NewStrandsTakeConstantTimeWhileManyAreInUse) {
  OrderStrands strands(kNoExecutor);
  constexpr uint64_t kStrands = 20'000;
  std::vector<std::shared_ptr<Strand>> in_use;
  for (uint64_t key = 1; key <= kStrands; ++key) in_use.push_back(strands.find(1, key));
  EXPECT_EQ(strands.size(), kStrands);
  EXPECT_LE(strands.examined(), 2 * kStrands);
}

TEST(OrderStrands, EndedStrandsAreRemoved) {
  OrderStrands strands(kNoExecutor);
  std::vector<std::shared_ptr<Strand>> in_use;
  for (uint64_t key = 1; key <= 5'000; ++key) in_use.push_back(strands.find(1, key));
  in_use.resize(10);
  // The next sweep comes after at most as many new strands as there were at the last one.
  for (uint64_t key = 1; key <= 20'000; ++key) {
    strands.find(2, key);
    ASSERT_LE(strands.size(), 10'000u);
  }
  EXPECT_LE(strands.size(), OrderStrands::kMostUnused);
  for (uint64_t key = 1; key <= 10; ++key) EXPECT_EQ(strands.find(1, key), in_use[key - 1]);
}

}  // namespace
}  // namespace gradwire::rpc
