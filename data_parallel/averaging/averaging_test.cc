#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <sstream>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/data_parallel/averaging/model_averager.h"
#include "gradwire/data_parallel/averaging/post_local_sgd_optimizer.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

// A parameter with this value and a gradient.
at::Tensor parameter(double value, at::ScalarType dtype = at::kDouble) {
  at::Tensor made = at::full({2}, value, dtype).requires_grad_();
  made.mutable_grad() = at::ones({2}, dtype);
  return made;
}

TEST(PeriodicModelAverager, AveragesInEachPeriodAfterTheWarmup) {
  const Ranks ranks(4, kOptions);
  ranks.run([](const Group& group) {
    PeriodicModelAverager averager(group, /*period=*/3, /*warmup_steps=*/2);
    for (int step = 0; step < 9; ++step) {
      const at::Tensor one = parameter(group->rank()), low = parameter(group->rank(), at::kFloat);
      at::Tensor without = at::full({2}, group->rank(), at::kDouble).requires_grad_();
      EXPECT_EQ(averager.step(), step);
      averager.average_parameters({one, without, low});
      const double want = step == 2 || step == 5 || step == 8 ? 1.5 : group->rank();
      EXPECT_EQ(one[1].item<double>(), want) << step;
      EXPECT_EQ(low[0].item<float>(), want) << step;
      EXPECT_EQ(without[0].item<double>(), group->rank());
    }
  });
}

TEST(HierarchicalModelAverager, TheLargestGroupOfAStepAverages) {
  const Ranks ranks(4, kOptions);
  ranks.run([](const Group& group) {
    HierarchicalModelAverager averager(group, {{2, 2}, {4, 4}}, /*warmup_steps=*/1);
    for (int step = 0; step < 9; ++step) {
      const at::Tensor one = parameter(group->rank());
      averager.average_parameters({one});
      const double pair = group->rank() < 2 ? 0.5 : 2.5;
      const double want = step == 0       ? group->rank()
                          : step % 4 == 0 ? 1.5
                          : step % 2 == 0 ? pair
                                          : group->rank();
      EXPECT_EQ(one[0].item<double>(), want) << step;
    }
  });
}

TEST(ModelAverager, WrongArgumentsAreRefused) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const auto kInvalid = absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(thrown_by([&] { PeriodicModelAverager(group, 0); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { PeriodicModelAverager(group, 1, -1); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { PeriodicModelAverager(nullptr, 1); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { PeriodicModelAverager(group, 1).set_step(-1); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { HierarchicalModelAverager(group, {}); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { HierarchicalModelAverager(group, {{0, 2}}); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { HierarchicalModelAverager(group, {{2, 1}}); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { HierarchicalModelAverager(group, {{1, 2}, {2, 1}}); }).code(), kInvalid);
    EXPECT_EQ(thrown_by([&] { PostLocalSgdOptimizer(nullptr, nullptr); }).code(), kInvalid);
  });
}

TEST(PostLocalSgdOptimizer, ASavedStateKeepsTheStep) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const auto make = [&](const at::Tensor& of) {
      return PostLocalSgdOptimizer(
          std::make_unique<torch::optim::SGD>(std::vector{of}, torch::optim::SGDOptions(1).momentum(0.5)),
          std::make_unique<PeriodicModelAverager>(group, 2));
    };
    const at::Tensor one = parameter(group->rank()), two = parameter(0);
    PostLocalSgdOptimizer first = make(one), second = make(two);
    for (int step = 0; step < 3; ++step) first.step();
    torch::serialize::OutputArchive out;
    first.save(out);
    std::stringstream bytes;
    out.save_to(bytes);
    torch::serialize::InputArchive in;
    in.load_from(bytes);
    second.load(in);
    EXPECT_EQ(second.averager().step(), 3);
    {
      const at::NoGradGuard no_grad;
      two.copy_(one);
    }
    for (int step = 0; step < 2; ++step) {
      first.step();
      second.step();
      EXPECT_TRUE(at::equal(one, two));
    }
    torch::serialize::OutputArchive plain;
    first.optimizer().save(plain);
    std::stringstream without_step;
    plain.save_to(without_step);
    torch::serialize::InputArchive wrong;
    wrong.load_from(without_step);
    EXPECT_EQ(thrown_by([&] { second.load(wrong); }).code(), absl::StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace gradwire::data_parallel
