#include "gradwire/tools/bench/suites/training.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "gmock/gmock.h"
#include "gradwire/tools/bench/suites/mlp.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

// Counts the steps of each kind.
struct Counts {
  int smart = 0, fast = 0, local = 0, checked = 0;

  TrainingStep step() {
    return {.run = [this](bool is_fast) { ++(is_fast ? fast : smart); },
            .check = [this] { ++checked; },
            .local = [this] { ++local; },
            .hops = 2,
            .has_modes = true};
  }
};

TEST(RunTraining, TheLatencyIsThatOfTheDefaultMode) {
  Counts counts;
  const Measurement result = run_training({.seconds = 0.01}, counts.step());
  EXPECT_GT(counts.smart, 0);
  EXPECT_EQ(counts.checked, counts.smart);
  EXPECT_EQ(counts.fast + counts.local, 0);
  EXPECT_EQ(result.calls, counts.smart);
  EXPECT_THAT(result.figures, IsEmpty());
}

TEST(RunTraining, ExtraFiguresAlternateTheKindsAndCheckEveryRemoteStep) {
  Counts counts;
  const Measurement result = run_training({.seconds = 0.01, .extra_figures = true}, counts.step());
  EXPECT_LE(std::abs(counts.smart - counts.fast), 1);
  EXPECT_LE(std::abs(counts.smart - counts.local), 1);
  EXPECT_EQ(counts.checked, counts.smart + counts.fast);
  EXPECT_THAT(result.figures, ElementsAre(Field(&Figure::metric, "smart_over_fast"),
                                          Field(&Figure::metric, "overhead_per_hop_us")));
}

TEST(RunTraining, ExtraFiguresAreTheRatioOfTheModesAndTheOverheadPerHop) {
  static int64_t now = 0;
  const auto take = [](int64_t micros) { now += micros * 1000; };
  const TrainingStep step{.run = [&](bool fast) { take(fast ? 200 : 400); },
                          .check = [&] { take(50); },
                          .local = [&] { take(100); },
                          .hops = 3,
                          .has_modes = true};
  const Measurement result = run_training({.seconds = 0.1, .extra_figures = true}, step, [] { return now; });
  ASSERT_EQ(result.figures.size(), 2u);
  EXPECT_DOUBLE_EQ(result.figures[0].value, 2);
  EXPECT_DOUBLE_EQ(result.figures[1].value, 100);
}

TEST(RunTraining, NoExtraFiguresWithoutASecondKindOfStep) {
  int runs = 0;
  const Measurement result =
      run_training({.seconds = 0.01, .extra_figures = true}, {.run = [&](bool) { ++runs; }, .check = [] {}});
  EXPECT_EQ(runs, 0);
  EXPECT_THAT(result.figures, IsEmpty());
}

TEST(CheckGradient, WantsTwoFloatsOfThatValue) {
  EXPECT_NO_THROW(check_gradient(at::full({2}, 4, at::kFloat), 4));
  EXPECT_NO_THROW(check_gradient(at::full({}, 4, at::kFloat).expand({2}), 4));
  EXPECT_THROW(check_gradient(at::full({2}, 3, at::kFloat), 4), std::runtime_error);
  EXPECT_THROW(check_gradient(at::full({3}, 4, at::kFloat), 4), std::runtime_error);
  EXPECT_THROW(check_gradient(at::Tensor(), 4), std::runtime_error);
}

TEST(Leaves, KnowTheGradientsThatTheRemoteStepsAreCheckedFor) {
  const Leaves leaves;
  leaves.add_up_locally(4);
  check_gradient(leaves.y().grad(), 4);
  check_gradient(leaves.x().grad(), 1);
  leaves.fan_out_locally(8);
  check_gradient(leaves.y().grad(), 8);
  leaves.clear();
  EXPECT_FALSE(leaves.y().grad().defined());
}

TEST(Mlp, LearnsAndIsTheSameInEveryProcess) {
  at::set_num_threads(1);  // As in the processes of the bench.
  LocalMlp model, other;
  const float first = model.step();
  EXPECT_EQ(other.step(), first);
  // MlpCheck requires that no later loss is larger than the first, so check many steps.
  for (int i = 0; i < 100; ++i) ASSERT_LE(model.step(), first) << i;
  EXPECT_LT(model.step(), 0.9F * first);
}

TEST(MlpCheck, AcceptsATrainingAndRejectsWrongLosses) {
  at::set_num_threads(1);
  LocalMlp model;
  MlpCheck check;
  const float first = model.step();
  check.next(first);
  // A step that did not change the model has the same loss again.
  EXPECT_THROW(check.next(first), std::runtime_error);
  MlpCheck other;
  EXPECT_THROW(other.next(std::numeric_limits<float>::quiet_NaN()), std::runtime_error);
}

}  // namespace
}  // namespace gradwire::bench
