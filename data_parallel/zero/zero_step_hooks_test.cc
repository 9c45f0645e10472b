#include "gradwire/data_parallel/zero/zero_step_hooks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "gradwire/data_parallel/hooks/stock_hooks.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using MakeHook = std::function<std::shared_ptr<CommHook>(std::shared_ptr<CommHook>, ShardedOptimizer&)>;

const std::pair<const char*, MakeHook> kHooks[] = {{"plain", hook_with_zero_step},
                                                   {"interleaved", hook_with_zero_step_interleaved}};

void expect_equal_parameters(const torch::nn::Module& got, const torch::nn::Module& want) {
  for (std::size_t i = 0; i < want.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(got.parameters()[i], want.parameters()[i])) << i;
  }
}

// The optimizer has the state of `want`, as an unsharded optimizer of the same parameters.
void expect_state(const ShardedOptimizer& optimizer, const Adam& want) {
  torch::serialize::OutputArchive out;
  optimizer.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  Adam got(want.param_groups()[0].params(), AdamOptions(0.25));
  got.load(in);
  ASSERT_EQ(got.state().size(), want.state().size());
  for (const auto& [parameter, state] : want.state()) {
    const auto& wanted = static_cast<const torch::optim::AdamParamState&>(*state);
    const auto& loaded = static_cast<const torch::optim::AdamParamState&>(*got.state().at(parameter));
    EXPECT_EQ(loaded.step(), wanted.step());
    EXPECT_TRUE(at::equal(loaded.exp_avg(), wanted.exp_avg()));
  }
}

// The same training with steps after backward(): `model` is a replica with the same options and no hook.
TEST(ZeroStepHooks, StepAsAnOptimizerAfterThePass) {
  for (const auto& [name, make] : kHooks) {
    for (const int size : {1, 2, 3}) {
      for (const double cap : {1e-9, 25.0}) {
        SCOPED_TRACE(std::string(name) + ", ranks: " + std::to_string(size) +
                     ", MiB: " + std::to_string(cap));
        const Ranks ranks(size, kOptions);
        ranks.run([&, &make = make](const Group& group) {
          const auto net = std::make_shared<NetImpl>(), plain = std::make_shared<NetImpl>();
          fill(*net, 0);
          fill(*plain, 0);
          ZeroRedundancyOptimizer<Adam> optimizer(net->parameters(), AdamOptions(0.25), group);
          Adam whole(plain->parameters(), AdamOptions(0.25));
          DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = cap});
          DistributedDataParallel other(plain, {.group = group, .bucket_cap_mb = cap});
          model.register_comm_hook(make(allreduce_hook(group), optimizer));
          other.register_comm_hook(allreduce_hook(group));
          for (int64_t pass = 0; pass < 4; ++pass) {
            const at::Tensor x = integers({2, 4}, 5 * pass + group->rank());
            // The gradients of earlier passes are still there in some passes.
            if (pass % 2 == 0) net->zero_grad();
            if (pass % 2 == 0) plain->zero_grad();
            model.forward(x).sum().backward();
            other.forward(x).sum().backward();
            whole.step();
            expect_equal_parameters(*net, *plain);
          }
          if (size > 1) EXPECT_LT(optimizer.local().state().size(), 6u);
          optimizer.consolidate_state();
          if (group->rank() == 0) expect_state(optimizer, whole);
        });
      }
    }
  }
}

TEST(ZeroStepHooks, MixedPrecisionStepsInFullPrecision) {
  for (const auto& [name, make] : kHooks) {
    SCOPED_TRACE(name);
    const Ranks ranks(2, kOptions);
    ranks.run([&make = make](const Group& group) {
      const auto net = std::make_shared<NetImpl>(at::kFloat), plain = std::make_shared<NetImpl>(at::kFloat);
      fill(*net, 0);
      fill(*plain, 0);
      const DistributedDataParallelOptions options{
          .group = group, .bucket_cap_mb = 1e-4, .mixed_precision = MixedPrecision{}};
      torch::optim::SGDOptions sgd(0.001);
      sgd.momentum(0.5);
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(), sgd, group);
      torch::optim::SGD whole(plain->parameters(), sgd);
      DistributedDataParallel model(net, options), other(plain, options);
      model.register_comm_hook(make(allreduce_hook(group), optimizer));
      other.register_comm_hook(allreduce_hook(group));
      for (int64_t pass = 0; pass < 4; ++pass) {
        const at::Tensor x = integers({2, 4}, pass + group->rank(), at::kFloat);
        net->zero_grad();
        plain->zero_grad();
        model.forward(x).sum().backward();
        other.forward(x).sum().backward();
        whole.step();
        expect_equal_parameters(*net, *plain);
        EXPECT_EQ(net->first->weight.scalar_type(), at::kFloat);
        EXPECT_EQ(net->first->weight.grad().scalar_type(), at::kFloat);
      }
      // The values have more bits than bfloat16 has.
      EXPECT_FALSE(at::equal(net->first->weight, net->first->weight.to(at::kBFloat16).to(at::kFloat)));
    });
  }
}

struct WordsImpl : torch::nn::Module {
  WordsImpl()
      : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true)))),
        late(register_module("late", torch::nn::Linear(3, 3))),
        last(register_module("last", torch::nn::Linear(3, 2))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& words) { return last(late(table(words))); }
  torch::nn::Embedding table;
  torch::nn::Linear late, last;
};

TEST(ZeroStepHooks, ParametersInNoBucketAreSteppedAtTheEnd) {
  for (const auto& [name, make] : kHooks) {
    SCOPED_TRACE(name);
    const Ranks ranks(2, kOptions);
    ranks.run([&make = make](const Group& group) {
      const auto net = std::make_shared<WordsImpl>(), plain = std::make_shared<WordsImpl>();
      fill(*net, 0);
      fill(*plain, 0);
      const DistributedDataParallelOptions options{.group = group,
                                                   .delayed_parameters = {"late.weight", "late.bias"}};
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(), torch::optim::SGDOptions(0.125),
                                                           group);
      torch::optim::SGD whole(plain->parameters(), torch::optim::SGDOptions(0.125));
      DistributedDataParallel model(net, options), other(plain, options);
      model.register_comm_hook(make(allreduce_hook(group), optimizer));
      other.register_comm_hook(allreduce_hook(group));
      for (int64_t pass = 0; pass < 3; ++pass) {
        const at::Tensor words = at::arange(3) + pass % 2 + group->rank();
        net->zero_grad();
        plain->zero_grad();
        model.forward(words).sum().backward();
        other.forward(words).sum().backward();
        whole.step();
        expect_equal_parameters(*net, *plain);
      }
    });
  }
}

TEST(ZeroStepHooks, ARankWithoutDataStepsItsShare) {
  for (const auto& [name, make] : kHooks) {
    SCOPED_TRACE(name);
    const Ranks ranks(2, kOptions);
    ranks.run([&make = make](const Group& group) {
      const auto net = std::make_shared<NetImpl>(), plain = std::make_shared<NetImpl>();
      fill(*net, 0);
      fill(*plain, 0);
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
          net->parameters(), torch::optim::SGDOptions(0.125).momentum(0.5), group);
      torch::optim::SGD whole(plain->parameters(), torch::optim::SGDOptions(0.125).momentum(0.5));
      DistributedDataParallel model(net, {.group = group});
      model.register_comm_hook(make(allreduce_hook(group), optimizer));
      const int passes[] = {4, 2};
      {
        const Join join = model.join();
        for (int64_t pass = 0; pass < passes[group->rank()]; ++pass) {
          net->zero_grad();
          model.forward(integers({2, 4}, pass + group->rank())).sum().backward();
        }
      }
      for (int64_t pass = 0; pass < 4; ++pass) {
        plain->zero_grad();
        for (int64_t rank = 0; rank < 2; ++rank) {
          if (pass < passes[rank]) plain->forward(integers({2, 4}, pass + rank)).sum().div(2).backward();
        }
        whole.step();
      }
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_TRUE(at::allclose(net->parameters()[i], plain->parameters()[i])) << i;
      }
    });
  }
}

// Fails at each step of this rank.
class FailingOptimizer : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure) override { throw std::runtime_error("the step has failed"); }
};

TEST(ZeroStepHooks, AStepThatFailsEndsThePass) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    const auto net = std::make_shared<NetImpl>(at::kFloat);
    ZeroRedundancyOptimizer<FailingOptimizer> optimizer(net->parameters(), torch::optim::SGDOptions(1),
                                                        group);
    DistributedDataParallel model(net, {.group = group, .mixed_precision = MixedPrecision{}});
    model.register_comm_hook(hook_with_zero_step(allreduce_hook(group), optimizer));
    const at::Tensor x = integers({2, 4}, 1, at::kFloat);
    try {
      model.forward(x).sum().backward();
      ADD_FAILURE() << "backward has not thrown";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("the step has failed"), std::string::npos) << error.what();
    }
    for (const at::Tensor& each : net->parameters()) EXPECT_EQ(each.scalar_type(), at::kFloat);
    EXPECT_EQ(optimizer.local().param_groups()[0].params().size(), 6u);
    EXPECT_THROW(model.forward(x), std::exception);
  });
}

}  // namespace
}  // namespace gradwire::data_parallel
