#include "gradwire/data_parallel/reducer/ready_state.h"

#include <gtest/gtest.h>

namespace gradwire::data_parallel {
namespace {

using Order = std::vector<std::size_t>;

TEST(ReadyState, BucketsAreTakenInTheirOrderForAnyOrderOfGradients) {
  ReadyState state({{3, 2}, {1}, {0}}, 4);
  state.start();
  EXPECT_TRUE(state.mark(0));
  EXPECT_TRUE(state.mark(1));
  EXPECT_TRUE(state.mark(2));
  EXPECT_EQ(state.take_complete(), std::nullopt);
  EXPECT_EQ(state.missing(), (Order{3}));
  EXPECT_TRUE(state.mark(3));
  EXPECT_EQ(state.take_complete(), 0u);
  EXPECT_EQ(state.take_complete(), 1u);
  EXPECT_FALSE(state.all_taken());
  EXPECT_EQ(state.take_complete(), 2u);
  EXPECT_TRUE(state.all_taken());
  EXPECT_EQ(state.take_complete(), std::nullopt);
}

TEST(ReadyState, FirstBucketIsTakenAsSoonAsItIsComplete) {
  ReadyState state({{2}, {1, 0}}, 3);
  EXPECT_TRUE(state.mark(2));
  EXPECT_EQ(state.take_complete(), 0u);
  EXPECT_EQ(state.taken(), 1u);
}

TEST(ReadyState, SecondMarkIsRefused) {
  ReadyState state({{0}, {1}}, 2);
  EXPECT_TRUE(state.mark(0));
  EXPECT_FALSE(state.mark(0));
  EXPECT_EQ(state.missing(), (Order{1}));
}

TEST(ReadyState, ParametersWithoutGradientAreLastInTheOrder) {
  ReadyState state({{0, 1, 2, 3}}, 4);
  state.mark(1, /*by_gradient=*/false);
  state.mark(2);
  state.mark(0);
  EXPECT_EQ(state.order(), (Order{2, 0, 3, 1}));
}

TEST(ReadyState, ResetPreparesForTheNextPass) {
  ReadyState state({{0}}, 1);
  state.start();
  state.mark(0);
  state.take_complete();
  state.reset();
  EXPECT_FALSE(state.started());
  EXPECT_EQ(state.missing(), (Order{0}));
  EXPECT_TRUE(state.mark(0));
  EXPECT_EQ(state.take_complete(), 0u);
}

}  // namespace
}  // namespace gradwire::data_parallel
