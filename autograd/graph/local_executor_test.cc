#include "gradwire/autograd/graph/local_executor.h"

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "gradwire/autograd/graph/gradients.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using torch::Tensor;

const rpc::Id kContext{1, 1};

absl::Status run_all(LocalExecutor& executor) {
  while (std::optional<LocalExecutor::Task> task = executor.next()) {
    if (absl::Status status = executor.run(*task); !status.ok()) return status;
    executor.finished(*task);
  }
  return absl::OkStatus();
}

struct Settings {
  bool retain_graph = false;
  bool sum_as_they_arrive = false;
  std::vector<Tensor> inputs;
};

absl::StatusOr<Gradients> backward(const std::vector<Tensor>& losses, const Settings& settings = {}) {
  torch::AutoGradMode guard(false);
  LocalExecutor executor({.context = kContext,
                          .retain_graph = settings.retain_graph,
                          .sum_as_they_arrive = settings.sum_as_they_arrive,
                          .inputs_only = !settings.inputs.empty()});
  torch::autograd::edge_list edges;
  torch::autograd::variable_list ones;
  for (const Tensor& loss : losses) {
    edges.push_back(torch::autograd::impl::gradient_edge(loss));
    ones.push_back(torch::ones_like(loss));
  }
  EXPECT_TRUE(executor.add_inputs(settings.inputs).ok());
  auto reach = executor.mark_roots(edges);
  if (!reach.ok()) return reach.status();
  EXPECT_TRUE(reach->marked.empty());
  executor.begin_run();
  EXPECT_TRUE(executor.deliver_roots(std::move(ones)).ok());
  Gradients gradients;
  while (std::optional<LocalExecutor::Task> task = executor.next()) {
    if (absl::Status status = executor.run(*task); !status.ok()) return status;
    for (auto& [tensor, gradient] : task->kept) accumulate(gradients, tensor, std::move(gradient));
    executor.finished(*task);
  }
  return gradients;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.layout() == b.layout() && a.sizes() == b.sizes() && torch::equal(a.to_dense(), b.to_dense());
}

// Losses and the leaves that they are computed from.
struct Graph {
  std::vector<Tensor> losses;
  std::vector<Tensor> leaves;
};

struct Case {
  std::string name;
  std::function<Graph()> make;
};

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

std::vector<Case> cases() {
  return {
      {"Mlp",
       [] {
         torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 16),
                                   torch::nn::Tanh(), torch::nn::Linear(16, 3));
         auto target = torch::randint(3, {5}, torch::kLong);
         return Graph{{torch::nn::functional::cross_entropy(net->forward(torch::randn({5, 8})), target)},
                      net->parameters()};
       }},
      {"SharedSubexpressions",
       [] {
         Tensor x = leaf({4, 4}), y = leaf({4, 4});
         Tensor s = (x * y).sin();
         return Graph{{(s * s + s.exp() + s.mm(y) + x + x).sum()}, {x, y}};
       }},
      {"Views",
       [] {
         Tensor x = leaf({4, 6});
         Tensor y = x.view({6, 4}).t();
         auto parts = y.split(2);
         return Graph{{(parts[0] * parts[1]).sum() + x.select(0, 1).sum() + x.narrow(1, 0, 2).pow(2).sum()},
                      {x}};
       }},
      {"InPlace",
       [] {
         Tensor x = leaf({5}), w = leaf({5});
         Tensor y = x * 2;
         y.mul_(w);
         y.narrow(0, 0, 2).add_(x.narrow(0, 1, 2));
         return Graph{{(y * x).sum()}, {x, w}};
       }},
      {"SameGradientTwice",
       [] {
         Tensor x = leaf({3}), y = leaf({3});
         return Graph{{(x + y).sum()}, {x, y}};
       }},
      {"ViewOfSharedGradient",
       [] {
         Tensor x = leaf({2, 3}), y = leaf({3, 2});
         return Graph{{(x.view({3, 2}) + y).mul(2).sum()}, {x, y}};
       }},
      {"LeafUsedManyTimes",
       [] {
         Tensor x = leaf({7});
         Tensor sum = x * x;
         for (int i = 0; i < 9; ++i) sum = sum + (x * (0.1 * i)).sin() * x;
         return Graph{{sum.sum()}, {x}};
       }},
      {"SeveralLosses",
       [] {
         Tensor x = leaf({3}), y = leaf({3});
         Tensor common = x * y;
         return Graph{{common.sum(), (common * x).sum(), common.exp().sum()}, {x, y}};
       }},
      {"SparseEmbedding",
       [] {
         torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
         auto index = torch::tensor({1, 3, 3, 7}, torch::kLong);
         return Graph{{embedding->forward(index).pow(2).sum()}, embedding->parameters()};
       }},
      {"SparseAndDense",
       [] {
         torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
         auto index = torch::tensor({1, 3, 3, 7}, torch::kLong);
         return Graph{{embedding->forward(index).pow(2).sum() + embedding->weight.sin().sum()},
                      embedding->parameters()};
       }},
      {"Complex",
       [] {
         Tensor x = torch::randn({3}, torch::kComplexDouble).requires_grad_();
         return Graph{{torch::abs(x * x).sum()}, {x}};
       }},
      {"Convolution",
       [] {
         torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3));
         torch::nn::BatchNorm2d norm(3);
         auto leaves = conv->parameters();
         for (Tensor& each : norm->parameters()) leaves.push_back(each);
         return Graph{{norm->forward(conv->forward(torch::randn({2, 2, 6, 6}))).relu().mean()}, leaves};
       }},
      {"UndefinedGradients",
       [] {
         Tensor x = leaf({4, 3});
         auto [values, indices] = x.max(1);
         auto lstm = torch::nn::LSTM(3, 2);
         auto output = std::get<0>(lstm->forward(x.unsqueeze(0)));
         auto leaves = lstm->parameters();
         leaves.push_back(x);
         return Graph{{output.sum() + values.sum()}, leaves};
       }},
      {"LeafIsTheLoss",
       [] {
         Tensor x = leaf({});
         return Graph{{x}, {x}};
       }},
      {"HalfPrecisionMixed",
       [] {
         Tensor x = leaf({4});
         return Graph{{x.to(torch::kHalf).to(torch::kFloat).mul(x).sum()}, {x}};
       }},
  };
}

class LocalExecutorGraphs : public ::testing::TestWithParam<Case> {};

TEST_P(LocalExecutorGraphs, GradientsAreLibtorchsOwnBitForBit) {
  for (int seed = 0; seed < 5; ++seed) {
    torch::manual_seed(seed);
    const Graph mine = GetParam().make();
    auto gradients = backward(mine.losses);
    ASSERT_TRUE(gradients.ok()) << gradients.status();
    for (const Tensor& each : mine.leaves) EXPECT_FALSE(each.grad().defined());

    torch::manual_seed(seed);
    const Graph reference = GetParam().make();
    torch::autograd::backward(reference.losses, {});
    for (std::size_t i = 0; i < reference.leaves.size(); ++i) {
      if (!reference.leaves[i].grad().defined()) {
        EXPECT_FALSE(gradients->contains(mine.leaves[i]));
        continue;
      }
      const Tensor& gradient = gradients->at(mine.leaves[i]);
      EXPECT_TRUE(same_bits(gradient, reference.leaves[i].grad())) << "leaf " << i;
      if (gradient.layout() == torch::kStrided) {
        EXPECT_EQ(gradient.strides(), reference.leaves[i].grad().strides());
      }
    }
  }
}

// On one worker gradients arrive in libtorch's order, so the sums are the same.
TEST_P(LocalExecutorGraphs, SummingAsTheyArriveGivesTheSame) {
  torch::manual_seed(3);
  const Graph mine = GetParam().make();
  auto gradients = backward(mine.losses, {.sum_as_they_arrive = true});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  torch::manual_seed(3);
  const Graph reference = GetParam().make();
  torch::autograd::backward(reference.losses, {});
  for (std::size_t i = 0; i < reference.leaves.size(); ++i) {
    if (!reference.leaves[i].grad().defined()) continue;
    EXPECT_TRUE(same_bits(gradients->at(mine.leaves[i]), reference.leaves[i].grad()));
  }
}

INSTANTIATE_TEST_SUITE_P(Graphs, LocalExecutorGraphs, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(LocalExecutor, HooksRunAsInLibtorch) {
  auto trace = [](bool ours) {
    torch::manual_seed(1);
    std::vector<std::string> calls;
    Tensor x = leaf({3});
    x.register_hook([&](const Tensor& g) {
      calls.push_back("leaf");
      return g * 3;
    });
    Tensor y = x * 2;
    y.register_hook([&](Tensor g) {
      calls.push_back("first");
      return g + 1;
    });
    y.register_hook([&](Tensor g) { calls.push_back("second"); });
    y.retain_grad();
    Tensor loss = (y * y).sum();
    Tensor gradient;
    if (ours) {
      gradient = backward({loss})->at(x);
    } else {
      loss.backward();
      gradient = x.grad();
    }
    return std::tuple(calls, gradient, y.grad());
  };
  const auto [calls, gradient, retained] = trace(true);
  const auto [expected_calls, expected_gradient, expected_retained] = trace(false);
  EXPECT_EQ(calls, expected_calls);
  EXPECT_EQ(calls.size(), 3u);
  EXPECT_TRUE(torch::equal(gradient, expected_gradient));
  EXPECT_TRUE(torch::equal(retained, expected_retained));
}

TEST(LocalExecutor, NodeHooksSeeAndChangeGradients) {
  struct Double : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& g) override {
      return {g[0] * 2};
    }
  };
  struct Negate : torch::autograd::FunctionPostHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& out,
                                              const torch::autograd::variable_list&) override {
      return {-out[0]};
    }
  };
  Tensor x = leaf({3});
  Tensor y = x.sin();
  y.grad_fn()->add_pre_hook(std::make_unique<Double>());
  y.grad_fn()->add_post_hook(std::make_unique<Negate>());
  auto gradients = backward({y.sum()});
  ASSERT_TRUE(gradients.ok());
  EXPECT_TRUE(torch::allclose(gradients->at(x), -2 * x.detach().cos()));
}

TEST(LocalExecutor, RetainedGraphRunsTwiceAndReleasedGraphFails) {
  Tensor x = leaf({3});
  Tensor loss = (x * x).sum();
  ASSERT_TRUE(backward({loss}, {.retain_graph = true}).ok());
  auto second = backward({loss});
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(torch::equal(second->at(x), 2 * x.detach()));
  auto third = backward({loss});
  ASSERT_FALSE(third.ok());
  EXPECT_NE(third.status().message().find("MulBackward0"), std::string::npos) << third.status();
  EXPECT_NE(third.status().message().find("second time"), std::string::npos) << third.status();
}

TEST(LocalExecutor, HundredThousandNodesInARowNeitherRunNorDieRecursively) {
  Tensor x = leaf({});
  {
    Tensor y = x;
    for (int i = 0; i < 100'000; ++i) y = y + 1;
    auto gradients = backward({y});
    ASSERT_TRUE(gradients.ok());
    EXPECT_EQ(gradients->at(x).item<float>(), 1);
  }
}

TEST(LocalExecutor, ExceptionInAHookNamesTheNode) {
  Tensor x = leaf({3});
  Tensor y = x.sin();
  y.register_hook([](Tensor) { throw std::runtime_error("broken hook"); });
  auto gradients = backward({y.sum()});
  ASSERT_FALSE(gradients.ok());
  EXPECT_EQ(gradients.status().code(), absl::StatusCode::kUnknown);
  EXPECT_NE(gradients.status().message().find("SinBackward0"), std::string::npos);
  EXPECT_NE(gradients.status().message().find("broken hook"), std::string::npos);
}

TEST(LocalExecutor, InputsRestrictWhatIsKept) {
  Tensor x = leaf({3}), w = leaf({3});
  Tensor y = x * w;
  auto gradients = backward({(y * y).sum()}, {.inputs = {y, w}});
  ASSERT_TRUE(gradients.ok());
  EXPECT_EQ(gradients->size(), 2u);
  EXPECT_TRUE(torch::equal(gradients->at(y), 2 * y.detach()));
  EXPECT_TRUE(torch::allclose(gradients->at(w), (2 * y * x).detach()));
}

// Nodes that run read the inputs without a lock, so the inputs must not change any more.
TEST(LocalExecutor, InputsAfterMarkingAreRefused) {
  Tensor x = leaf({3});
  LocalExecutor executor({.context = kContext, .inputs_only = true});
  ASSERT_TRUE(executor.add_inputs({x}).ok());
  ASSERT_TRUE(executor.mark_roots({torch::autograd::impl::gradient_edge(x.sum())}).ok());
  EXPECT_EQ(executor.add_inputs({x}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(LocalExecutor, MultiOutputMessageWalksMarkedOutputsAlone) {
  Tensor x = leaf({3}), w = leaf({3});
  Tensor a = x.sin(), b = w.cos();
  bool called = false;
  b.register_hook([&](Tensor) { called = true; });
  auto send = std::shared_ptr<SendNode>(
      new SendNode(kContext, 4, 9,
                   {torch::autograd::impl::gradient_edge(a), torch::autograd::impl::gradient_edge(b)}),
      torch::autograd::deleteNode);
  torch::AutoGradMode guard(false);
  LocalExecutor executor({.context = kContext});
  ASSERT_TRUE(executor.mark_outputs(send, {0}).ok());
  EXPECT_EQ(executor.take_counted(), 3u);  // The message, the sine, its leaf.
  ASSERT_TRUE(executor.mark_outputs(send, {0}).ok());
  EXPECT_EQ(executor.take_counted(), 0u);
  EXPECT_FALSE(executor.mark_outputs(send, {2}).ok());
  EXPECT_EQ(executor.deliver_message(4, {torch::ones(3), torch::ones(3)}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(executor.deliver_message(4, {torch::ones(4), Tensor()}).ok())
      << "a gradient of the wrong shape";
  ASSERT_TRUE(executor.deliver_message(4, {torch::ones(3), Tensor()}).ok());
  EXPECT_FALSE(executor.deliver_message(4, {torch::ones(3), Tensor()}).ok());
  ASSERT_TRUE(run_all(executor).ok());
  EXPECT_FALSE(called);
}

// Returns the sum of the gradients of three messages of one tensor, which arrive in the given order. The sum
// depends on the order of additions.
float sum_of_three(const std::vector<int>& arrival, bool as_they_arrive) {
  const std::vector<float> values = {1, 1e8f, -1e8f};
  Tensor x = torch::zeros({1}).requires_grad_();
  std::vector<std::shared_ptr<SendNode>> sent;
  for (uint64_t message = 1; message <= 3; ++message) {
    sent.push_back(std::shared_ptr<SendNode>(
        new SendNode(kContext, message, 9, {torch::autograd::impl::gradient_edge(x)}),
        torch::autograd::deleteNode));
  }
  torch::AutoGradMode guard(false);
  LocalExecutor executor({.context = kContext, .sum_as_they_arrive = as_they_arrive});
  for (const auto& node : sent) EXPECT_TRUE(executor.mark_outputs(node, {0}).ok());
  for (int i : arrival) {
    EXPECT_TRUE(executor.deliver_message(sent[i]->message(), {torch::full({1}, values[i])}).ok());
  }
  std::optional<LocalExecutor::Task> task = executor.next();
  if (!task) return -1;
  EXPECT_TRUE(executor.run(*task).ok());
  return task->kept.at(0).second.item<float>();
}

TEST(LocalExecutor, GradientsThatArriveInAnyOrderAreAddedYoungestFirst) {
  std::vector<int> arrival = {0, 1, 2};
  // The sum is (-1e8 + 1e8) + 1.
  do {
    EXPECT_EQ(sum_of_three(arrival, false), 1) << arrival[0] << arrival[1] << arrival[2];
  } while (std::next_permutation(arrival.begin(), arrival.end()));
}

TEST(LocalExecutor, SummingAsTheyArriveAddsInTheOrderOfArrival) {
  EXPECT_EQ(sum_of_three({2, 1, 0}, true), 1);
  EXPECT_EQ(sum_of_three({0, 1, 2}, true), 0);
}

TEST(LocalExecutor, TensorsOfOneMessageAreAddedLastFirst) {
  Tensor x = torch::zeros({1}).requires_grad_();
  const torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(x);
  auto send = std::shared_ptr<SendNode>(new SendNode(kContext, 1, 9, {edge, edge, edge}),
                                        torch::autograd::deleteNode);
  torch::AutoGradMode guard(false);
  LocalExecutor executor({.context = kContext});
  ASSERT_TRUE(executor.mark_outputs(send, {0, 1, 2}).ok());
  ASSERT_TRUE(
      executor.deliver_message(1, {torch::full({1}, 1.f), torch::full({1}, 1e8f), torch::full({1}, -1e8f)})
          .ok());
  std::optional<LocalExecutor::Task> task = executor.next();
  ASSERT_TRUE(task.has_value());
  ASSERT_TRUE(executor.run(*task).ok());
  EXPECT_EQ(task->kept.at(0).second.item<float>(), 1);
}

TEST(LocalExecutor, RecvNodeIsReachedOnceForEachOutputAndGivesItsGradients) {
  auto recv =
      std::shared_ptr<RecvNode>(new RecvNode(kContext, 0, {"there", 3, 33}, 8), torch::autograd::deleteNode);
  Tensor a = torch::randn({3}), b = torch::randn({3}), c = torch::randn({3});
  set_outputs(recv, {&a, &b, &c});
  torch::autograd::edge_list roots{torch::autograd::impl::gradient_edge((a * c + a.sin()).sum())};
  torch::AutoGradMode guard(false);
  LocalExecutor executor({.context = kContext});
  auto reach = executor.mark_roots(roots);
  ASSERT_TRUE(reach.ok());
  ASSERT_EQ(reach->marked.size(), 1u);
  EXPECT_EQ(reach->marked[0].node, recv);
  EXPECT_EQ(reach->marked[0].outputs, (std::vector<uint32_t>{0, 2}));
  EXPECT_TRUE(executor.deliver_roots({torch::ones({})}).ok());
  bool shipped = false;
  while (std::optional<LocalExecutor::Task> task = executor.next()) {
    ASSERT_TRUE(executor.run(*task).ok());
    if (task->recv != nullptr) {
      shipped = true;
      EXPECT_TRUE(torch::allclose(task->outputs[0], (c + a.cos()).detach()));
      EXPECT_FALSE(task->outputs[1].defined());
      EXPECT_TRUE(torch::equal(task->outputs[2], a.detach()));
    }
    executor.finished(*task);
  }
  EXPECT_TRUE(shipped);
}

TEST(LocalExecutor, TensorOfAnotherContextFailsThePassNamingBoth) {
  auto recv =
      std::shared_ptr<RecvNode>(new RecvNode({5, 77}, 0, {"there", 3, 33}, 8), torch::autograd::deleteNode);
  Tensor a = torch::randn({3});
  set_outputs(recv, {&a});
  auto gradients = backward({a.sum()});
  ASSERT_EQ(gradients.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(gradients.status().message().find("5:77"), std::string::npos);
  EXPECT_NE(gradients.status().message().find("1:1"), std::string::npos);
  EXPECT_ANY_THROW(a.sum().backward()) << "libtorch's own backward must report the boundary";
}

TEST(Gradients, GradientsThatAreHeldElsewhereAreNotAddedToInPlace) {
  torch::NoGradGuard guard;
  Tensor x = torch::zeros({2}).requires_grad_();
  Gradients gradients;
  accumulate(gradients, x, torch::ones({2}));
  Tensor mine = gradients.at(x);
  accumulate(gradients, x, torch::ones({2}));
  EXPECT_TRUE(torch::equal(mine, torch::ones({2})));
  EXPECT_TRUE(torch::equal(gradients.at(x), 2 * torch::ones({2})));
  mine = Tensor();
  const void* memory = gradients.at(x).data_ptr();
  accumulate(gradients, x, torch::ones({2}));
  EXPECT_NE(memory, nullptr);
  EXPECT_TRUE(torch::equal(gradients.at(x), 3 * torch::ones({2})));
  EXPECT_THROW(gradients.at(torch::ones({2})), std::exception);
}

}  // namespace
}  // namespace gradwire::autograd
