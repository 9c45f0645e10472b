#include "gradwire/data_parallel/arrangement/bucket_arrangement.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "gradwire/base/manual_clock.h"
#include "gradwire/data_parallel/reducer/reducer.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

constexpr int64_t kParameters = 12;

// Parameters of 1 MiB each. The caps of 100 and 25 MiB give 2 buckets (the first one has 1 MiB), 8 MiB gives
// 3 and 2 MiB gives 7.
struct LargeImpl : torch::nn::Module {
  LargeImpl() {
    for (int64_t i = 0; i < kParameters; ++i) {
      weights.push_back(register_parameter("p" + std::to_string(i), at::zeros({1 << 18})));
    }
  }
  // The gradient of each parameter is `factor`; `left_out` gets none.
  at::Tensor forward(double factor, int64_t left_out = -1) {
    at::Tensor sum = at::zeros({});
    for (int64_t i = 0; i < kParameters; ++i) {
      if (i != left_out) sum = sum + (weights[static_cast<std::size_t>(i)] * factor).sum();
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};

bool all_equal(const at::Tensor& tensor, double value) {
  return tensor.defined() && at::equal(tensor, at::full_like(tensor, value));
}

std::vector<NamedTensor> named(const LargeImpl& net) {
  std::vector<NamedTensor> list;
  for (const auto& item : net.named_parameters()) list.push_back({item.key(), item.value()});
  return list;
}

TEST(BucketArrangement, TheCapThatIsBestForTheSlowestRankIsUsed) {
  // The milliseconds of a pass for each number of buckets. Rank 0 alone would choose 3 buckets, and rank 1
  // alone 7 buckets.
  const std::map<std::size_t, int> milliseconds[] = {{{2, 80}, {3, 50}, {7, 100}},
                                                     {{2, 80}, {3, 60}, {7, 10}}};
  std::vector<std::size_t> counts[2];
  const Ranks ranks(2, kOptions);
  ranks.run([&](const Group& group) {
    ManualClock clock;
    LargeImpl net;
    Reducer reducer(named(net), {}, {.group = group, .tune_caps = true, .clock = &clock});
    int64_t gradients = 0;
    for (const at::Tensor& each : net.weights) {
      each.register_hook([&](const at::Tensor&) {
        if (++gradients % kParameters != 0) return;
        clock.advance(absl::Milliseconds(milliseconds[group->rank()].at(reducer.bucket_names().size())));
      });
    }
    for (int pass = 0; pass < 20; ++pass) {
      net.zero_grad();
      LowPrecisionScope scope = reducer.before_forward(/*training=*/true);
      const at::Tensor loss = net.forward(group->rank() + 1);
      reducer.after_forward(scope, {loss});
      counts[group->rank()].push_back(reducer.bucket_names().size());
      loss.backward();
      for (const at::Tensor& each : net.weights) EXPECT_TRUE(all_equal(each.grad(), 1.5)) << pass;
    }
  });
  const std::vector<std::size_t> want = {2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 7, 7, 7, 7, 7, 3, 3, 3, 3};
  EXPECT_EQ(counts[0], want);
  EXPECT_EQ(counts[1], want);
}

TEST(BucketArrangement, TrialsWithUnusedParametersAndNoSync) {
  const DistributedDataParallelOptions options{.find_unused_parameters = true};
  std::vector<std::vector<std::string>> names[2];
  on_replicas<LargeImpl>(2, options, [&](const Group& group, LargeImpl& net, auto& model) {
    for (int pass = 0; pass < 20; ++pass) {
      net.zero_grad();
      if (pass % 4 == 3) {
        const auto guard = model.no_sync();
        model.forward(2.0).backward();
      }
      model.forward(group->rank() + 1, /*left_out=*/7).backward();
      const double before = pass % 4 == 3 ? 2.0 : 0.0;
      for (int64_t i = 0; i < kParameters; ++i) {
        const at::Tensor grad = net.weights[static_cast<std::size_t>(i)].grad();
        if (i == 7 && before == 0) {
          EXPECT_FALSE(grad.defined());
        } else {
          EXPECT_TRUE(all_equal(grad, (i == 7 ? 0 : 1.5) + before)) << pass << " " << i;
        }
      }
    }
    names[group->rank()] = model.reducer().bucket_names();
  });
  EXPECT_EQ(names[0], names[1]);
  // The parameter without a gradient in the first pass is the last one.
  EXPECT_EQ(names[0].back().back(), "p7");
}

TEST(BucketArrangement, ARankWithoutDataTakesPartInTheTrials) {
  std::vector<std::vector<std::string>> names[2];
  on_replicas<LargeImpl>(2, {}, [&](const Group& group, LargeImpl& net, auto& model) {
    {
      const Join join = model.join();
      for (int pass = 0; pass < (group->rank() == 0 ? 20 : 8); ++pass) {
        net.zero_grad();
        model.forward(group->rank() + 1).backward();
        EXPECT_TRUE(all_equal(net.weights[0].grad(), pass < 8 ? 1.5 : 0.5)) << pass;
      }
    }
    names[group->rank()] = model.reducer().bucket_names();
  });
  EXPECT_EQ(names[0], names[1]);
}

TEST(BucketArrangement, AHookAndAGivenCapStopTheTrials) {
  for (const bool hook : {false, true}) {
    DistributedDataParallelOptions options;
    if (!hook) options.bucket_cap_mb = 8;
    on_replicas<LargeImpl>(2, options, [&](const Group&, LargeImpl& net, auto& model) {
      if (hook) {
        model.register_comm_hook(
            make_comm_hook([](GradBucket& bucket) { return HookStep(bucket.buffer()); }));
      }
      for (int pass = 0; pass < 14; ++pass) {
        net.zero_grad();
        model.forward(1.0).backward();
        EXPECT_EQ(model.reducer().bucket_names().size(), hook ? 2 : 3) << pass;
      }
    });
  }
}

}  // namespace
}  // namespace gradwire::data_parallel
