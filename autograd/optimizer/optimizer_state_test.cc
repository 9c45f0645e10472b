// Tests of the options that are sent to owners, and of optimizer state that is saved and loaded.
#include <torch/optim/lbfgs.h>
#include <torch/types.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/autograd/optimizer/optimizer_archive.h"
#include "gradwire/autograd/optimizer/optimizer_test_util.h"
#include "gradwire/base/stable_hash.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using rpc::AgentGuard;
using rpc::RRef;
using rpc::testing::Group;
using ::testing::AllOf;
using ::testing::HasSubstr;

OptimizerFile read(const std::string& bytes) { return value_or_throw(read_optimizer_file(bytes)); }

// ---- Options.

template <class O>
std::map<std::string, c10::IValue> local_fields(const typename OptimizerTraits<O>::Options& options) {
  O optimizer(std::vector<at::Tensor>{torch::ones({1}).requires_grad_()}, options);
  return take_apart(optimizer).at(0).options.values;
}

// Compares every field that libtorch itself saves, with values that are not the defaults.
template <class O>
void expect_all_travel(const typename OptimizerTraits<O>::Options& options,
                       const std::vector<std::string>& but = {}) {
  Group group(2);
  AgentGuard guard(group[0]);
  RRef<Layer> layer = group[0]->remote<Layer>("worker1", torch::ones({2}));
  DistributedOptimizer<O> optimizer(layer.rpc_sync<&Layer::parameters>(), options);
  const auto remote = read(optimizer.save()).groups.at(0).options.values;
  const auto local = local_fields<O>(options);
  const auto defaults = local_fields<O>(typename OptimizerTraits<O>::Options(0.7));
  ASSERT_EQ(remote.size(), local.size());
  EXPECT_FALSE(local.empty());
  for (const auto& [name, value] : local) {
    ASSERT_TRUE(remote.contains(name)) << name;
    EXPECT_TRUE(remote.at(name) == value) << name;
    if (std::find(but.begin(), but.end(), name) != but.end()) continue;
    EXPECT_FALSE(value == defaults.at(name))
        << name << " has its default value, so the test does not cover it";
  }
}

TEST(OptimizerOptions, EveryFieldTravels) {
  // Nesterov's momentum forbids dampening.
  expect_all_travel<torch::optim::SGD>(sgd_options(), {"nesterov"});
  expect_all_travel<torch::optim::SGD>(nesterov_options(), {"dampening"});
  expect_all_travel<torch::optim::Adam>(adam_options());
  expect_all_travel<torch::optim::AdamW>(adamw_options());
  expect_all_travel<torch::optim::Adagrad>(adagrad_options());
  expect_all_travel<torch::optim::RMSprop>(rmsprop_options());
  expect_all_travel<torch::optim::LBFGS>(lbfgs_options());
}

// ---- State.

template <class O>
void train(DistributedOptimizer<O>& optimizer, const Pair& pair, int from, int to) {
  for (int step = from; step < to; ++step) {
    auto evaluate = [&](const Context& context) {
      at::Tensor loss = pair.loss(step);
      backward(context, {loss});
      return loss;
    };
    optimizer.step(evaluate);
  }
}

// Interrupts training after three steps of six, and continues it with another optimizer on parameters that
// have changed their owners.
template <class O>
void expect_goes_on_exactly(const typename OptimizerTraits<O>::Options& options,
                            const typename OptimizerTraits<O>::Options& other_options,
                            bool one_owner = false) {
  Group group(3);
  AgentGuard guard(group[0]);
  const char* second_owner = one_owner ? "worker1" : "worker2";
  Pair before(group, "worker1", second_owner), after(group, second_owner, "worker1");
  DistributedOptimizer<O> first(before.parameters, options);
  train(first, before, 0, 3);
  const std::string bytes = first.save();
  after.set_values(before.values());
  train(first, before, 3, 6);

  DistributedOptimizer<O> second(after.parameters, other_options);
  second.load(bytes);
  EXPECT_EQ(second.learning_rates(), first.learning_rates());
  EXPECT_EQ(second.save(), bytes);
  train(second, after, 3, 6);
  EXPECT_TRUE(equal(after.values(), before.values()));
}

TEST(OptimizerState, SgdGoesOnExactly) {
  expect_goes_on_exactly<torch::optim::SGD>(sgd_options(), torch::optim::SGDOptions(1));
}
TEST(OptimizerState, AdamGoesOnExactly) { expect_goes_on_exactly<torch::optim::Adam>(adam_options(), {}); }
TEST(OptimizerState, AdamWGoesOnExactly) { expect_goes_on_exactly<torch::optim::AdamW>(adamw_options(), {}); }
TEST(OptimizerState, AdagradGoesOnExactly) {
  expect_goes_on_exactly<torch::optim::Adagrad>(adagrad_options(), {});
}
TEST(OptimizerState, RmsPropGoesOnExactly) {
  expect_goes_on_exactly<torch::optim::RMSprop>(rmsprop_options(), {});
}
TEST(OptimizerState, LbfgsGoesOnExactly) {
  expect_goes_on_exactly<torch::optim::LBFGS>(lbfgs_options(), {}, /*one_owner=*/true);
}

TEST(OptimizerState, GroupsAndWhatASchedulerSetLastAreSaved) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  using Adam = DistributedOptimizer<torch::optim::Adam>;
  const std::vector<Adam::Group> groups{
      {.parameters = {pair.parameters[3], pair.parameters[0]}},
      {.parameters = {pair.parameters[1], pair.parameters[2]}, .options = torch::optim::AdamOptions(0.3)}};
  Adam first(groups, adam_options());
  train(first, pair, 0, 2);
  first.schedulable().param_groups()[1].options().set_lr(0.125);
  const std::string bytes = first.save();
  const std::vector<at::Tensor> values = pair.values();
  train(first, pair, 2, 4);
  const std::vector<at::Tensor> expected = pair.values();

  pair.set_values(values);
  Adam second(groups, torch::optim::AdamOptions(0.9));
  second.load(bytes);
  EXPECT_EQ(second.schedulable().param_groups()[1].options().get_lr(), 0.125);
  train(second, pair, 2, 4);
  EXPECT_TRUE(equal(pair.values(), expected));
}

TEST(OptimizerState, StateThatWasNotSavedIsForgotten) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::SGD> optimizer(pair.parameters, sgd_options());
  const std::vector<at::Tensor> start = pair.values();
  const std::string fresh = optimizer.save();
  EXPECT_FALSE(read(fresh).groups.at(0).parameters.at(0).state.has_value());
  train(optimizer, pair, 0, 2);
  const std::vector<at::Tensor> expected = pair.values();
  EXPECT_TRUE(read(optimizer.save()).groups.at(0).parameters.at(0).state.has_value());
  optimizer.load(fresh);
  pair.set_values(start);
  train(optimizer, pair, 0, 2);
  EXPECT_TRUE(equal(pair.values(), expected));
}

TEST(OptimizerState, StateOfAnotherOptimizerIsRefusedByName) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  RRef<Layer> larger = group[0]->remote<Layer>("worker2", torch::ones({7}));
  using Sgd = DistributedOptimizer<torch::optim::SGD>;
  Sgd sgd(pair.parameters, sgd_options());
  train(sgd, pair, 0, 1);
  const std::string state = sgd.save();
  auto refusal = [&](auto& optimizer, const std::string& bytes) {
    const std::string before = optimizer.save();
    const absl::Status status = status_of([&] { optimizer.load(bytes); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(optimizer.save(), before);
    return std::string(status.message());
  };
  DistributedOptimizer<torch::optim::Adam> adam(pair.parameters, adam_options());
  EXPECT_THAT(refusal(adam, state),
              AllOf(HasSubstr("DistributedOptimizer<Adam>::load"), HasSubstr("the saved state of SGD")));
  Sgd fewer({pair.parameters[0], pair.parameters[1]}, sgd_options());
  EXPECT_THAT(refusal(fewer, state), AllOf(HasSubstr("has 4 parameters"), HasSubstr("expected 2")));
  Sgd groups({{.parameters = {pair.parameters[0]}}, {.parameters = {pair.parameters[2]}}}, sgd_options());
  EXPECT_THAT(refusal(groups, state), HasSubstr("1 parameter groups, expected 2"));
  std::vector<RRef<at::Tensor>> parameters = pair.parameters;
  parameters[3] = larger.rpc_sync<&Layer::parameters>()[1];
  Sgd shapes(parameters, sgd_options());
  EXPECT_THAT(refusal(shapes, state), AllOf(HasSubstr("parameter 3 of group 0"), HasSubstr("worker2"),
                                            HasSubstr("Float[7]"), HasSubstr("Float[6]")));
}

// ---- Untrusted bytes.

constexpr std::size_t kHashAt = 27;

// Gives modified bytes a correct hash.
std::string with_hash(std::string bytes) {
  const uint64_t hash = stable_hash(absl::string_view(bytes).substr(kHashAt + 8));
  std::memcpy(bytes.data() + kHashAt, &hash, sizeof(hash));
  return bytes;
}

TEST(OptimizerState, InvalidBytesAreRefused) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::Adam> optimizer(pair.parameters, adam_options());
  train(optimizer, pair, 0, 1);
  const std::string bytes = optimizer.save();
  ASSERT_EQ(with_hash(bytes), bytes);
  std::mt19937 random(7);
  auto refuses = [&](const std::string& wrong) {
    const absl::Status status = status_of([&] { optimizer.load(wrong); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("cannot read the saved state of a DistributedOptimizer"));
  };
  for (const std::string& wrong :
       {std::string(), std::string("PK\3\4"), bytes + "x", std::string(1000, '\0'), bytes.substr(1)}) {
    refuses(wrong);
  }
  for (int i = 0; i < 200; ++i) {
    refuses(bytes.substr(0, random() % bytes.size()));
    std::string wrong = bytes;
    wrong[random() % wrong.size()] ^= static_cast<char>(1 << random() % 8);
    refuses(wrong);
  }
  EXPECT_EQ(optimizer.save(), bytes);
}

// With a correct hash the rest of the bytes is parsed. Random bytes are loaded or refused, and the optimizer
// stays usable.
TEST(OptimizerState, RandomBytesWithACorrectHashDoNoHarm) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::Adam> optimizer(pair.parameters, adam_options());
  train(optimizer, pair, 0, 1);
  const std::string bytes = optimizer.save();
  std::mt19937 random(8);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string wrong = bytes;
    if (i % 4 == 0) wrong.resize(kHashAt + 8 + random() % (wrong.size() - kHashAt - 8));
    for (unsigned n = random() % 4; n > 0 || i % 4 != 0; --n) {
      wrong[kHashAt + 8 + random() % (wrong.size() - kHashAt - 8)] = static_cast<char>(random());
      if (n <= 1) break;
    }
    if (!status_of([&] { optimizer.load(with_hash(wrong)); }).ok()) ++refused;
  }
  EXPECT_GT(refused, 100);
  optimizer.load(bytes);
  EXPECT_EQ(optimizer.save(), bytes);
}

// The file is well-formed, but the optimizer's own load() expects other content.
TEST(OptimizerState, StateThatLoadRejectsLeavesTheOldState) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::Adam> optimizer(pair.parameters, adam_options());
  train(optimizer, pair, 0, 1);
  const std::string bytes = optimizer.save();
  auto refused = [&](const std::function<void(OptimizerFile&)>& change) {
    OptimizerFile file = read(bytes);
    change(file);
    const absl::Status status =
        status_of([&] { optimizer.load(value_or_throw(write_optimizer_file(file))); });
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("DistributedOptimizer<Adam>::load"));
    EXPECT_EQ(optimizer.save(), bytes);
  };
  refused([](OptimizerFile& file) { file.groups[0].options.values.erase("betas"); });
  refused([](OptimizerFile& file) {
    for (auto& each : file.groups[0].parameters) each.state->values["exp_avg"] = c10::IValue("none");
  });
  refused([](OptimizerFile& file) {
    for (auto& each : file.groups[0].parameters) each.state->values.erase("step");
  });
}

}  // namespace
}  // namespace gradwire::autograd
