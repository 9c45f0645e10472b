#include "gradwire/autograd/pass/plan.h"

#include <initializer_list>
#include <tuple>

#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

constexpr uint64_t kRoot = 1;

using Tensor = std::tuple<uint64_t, uint64_t, uint32_t>;

GradientRoute tensors(std::initializer_list<Tensor> all) {
  GradientRoute route;
  for (const auto& [sender, message, output] : all) route.add(sender, message, output);
  return route;
}

TEST(Plan, IndependentCalleesOfTheRootHaveOnePartEach) {
  Plan plan(kRoot);
  plan.add(tensors({{2, 20, 0}, {kRoot, 10, 0}}));
  plan.add(tensors({{3, 30, 0}, {kRoot, 11, 0}}));
  ASSERT_EQ(plan.parts().size(), 2u);
  EXPECT_EQ(plan.part_of(2)->tensors(), 2u);
  ASSERT_NE(plan.part_of(3), nullptr);
  EXPECT_EQ(plan.part_of(3)->messages(), tensors({{3, 30, 0}, {kRoot, 11, 0}}).messages());
  EXPECT_EQ(plan.part_of(4), nullptr);
}

TEST(Plan, TheRootKnowsTheWhole) {
  Plan plan(kRoot);
  plan.add(tensors({{kRoot, 10, 0}, {2, 20, 0}}));
  EXPECT_EQ(plan.part_of(kRoot), nullptr);
}

TEST(Plan, TensorsOfOneWorkerAreInOnePart) {
  Plan plan(kRoot);
  plan.add(tensors({{2, 20, 0}}));
  plan.add(tensors({{3, 30, 0}}));
  plan.add(tensors({{2, 20, 1}, {2, 21, 0}}));
  ASSERT_EQ(plan.parts().size(), 2u);
  EXPECT_EQ(plan.part_of(2)->messages(), tensors({{2, 20, 0}, {2, 20, 1}, {2, 21, 0}}).messages());
}

// A worker that gets gradients from two others may learn of the pass from either.
TEST(Plan, TensorsThatLeadToOneWorkerAreInOnePart) {
  Plan plan(kRoot);
  plan.add(tensors({{2, 20, 0}, {5, 50, 0}}));
  plan.add(tensors({{3, 30, 0}}));
  plan.add(tensors({{4, 40, 0}, {6, 60, 0}}));
  plan.add(tensors({{5, 51, 0}, {6, 61, 0}}));
  ASSERT_EQ(plan.parts().size(), 2u);
  EXPECT_EQ(plan.part_of(2), plan.part_of(4));
  EXPECT_NE(plan.part_of(2), plan.part_of(3));
  EXPECT_EQ(plan.part_of(2)->tensors(), 6u);
  EXPECT_EQ(plan.part_of(3)->tensors(), 1u);
}

TEST(Plan, FitsWithMoreTensorsThanAPartMayHave) {
  Plan plan(kRoot);
  for (uint64_t worker = 2; worker < 2 + GradientRoute::kMaxTensors; ++worker) {
    plan.add(tensors({{worker, 20, 0}, {kRoot, worker, 0}}));
  }
  EXPECT_EQ(plan.parts().size(), GradientRoute::kMaxTensors);
  EXPECT_TRUE(plan.fits());
}

TEST(Plan, DoesNotFitWithAPartThatCannotBeSent) {
  Plan plan(kRoot);
  plan.add(tensors({{3, 30, 0}}));
  for (uint32_t output = 0; output < GradientRoute::kMaxTensors; ++output)
    plan.add(tensors({{2, 20, output}}));
  EXPECT_TRUE(plan.fits());
  plan.add(tensors({{2, 21, 0}}));
  EXPECT_FALSE(plan.fits());
}

TEST(Plan, DoesNotFitWithMorePartsThanAreCompared) {
  Plan plan(kRoot);
  for (uint64_t message = 0; message < Plan::kMaxParts; ++message) plan.add(tensors({{kRoot, message, 0}}));
  EXPECT_TRUE(plan.fits());
  plan.add(tensors({{kRoot, Plan::kMaxParts, 0}}));
  EXPECT_FALSE(plan.fits());
}

}  // namespace
}  // namespace gradwire::autograd
