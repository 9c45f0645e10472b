#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

// The networks and the data of oracle/oracle.py. Both sides compute the same numbers from the same formulas.
namespace gradwire::data_parallel::oracle {

inline constexpr int64_t kSteps = 50;
inline constexpr int64_t kRows = 6;

// Numbers (7 i + 13 seed) mod modulus, centred and divided by scale.
inline at::Tensor formula(at::IntArrayRef shape, int64_t seed, int64_t modulus, double scale,
                          at::ScalarType dtype) {
  const int64_t count = c10::multiply_integers(shape);
  const at::Tensor numbers =
      at::arange(count, at::kLong).mul(7).add(seed * 13).remainder(modulus).sub(modulus / 2);
  return (numbers.to(at::kDouble) / scale).to(dtype).reshape(shape);
}

inline void fill(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  int64_t seed = 1;
  for (const at::Tensor& each : module.parameters()) {
    each.copy_(formula(each.sizes(), seed++, 17, 40.0, each.scalar_type()));
  }
}

struct Batch {
  at::Tensor x, y;
};

inline Batch batch(int64_t rank, int64_t step, at::ScalarType dtype = at::kDouble, int64_t rows = kRows) {
  return {formula({rows, 10}, 3 * step + 11 * rank, 19, 10.0, dtype),
          formula({rows, 4}, 7 * step + 5 * rank, 23, 10.0, dtype)};
}

struct NetOptions {
  at::ScalarType dtype = at::kDouble;
  bool norm = false;
  bool branch = false;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NetOptions& options = {})
      : first(register_module("first", torch::nn::Linear(10, 16))),
        second(register_module("second", torch::nn::Linear(16, 8))),
        third(register_module("third", torch::nn::Linear(8, 4))) {
    if (options.norm) norm = register_module("norm", torch::nn::BatchNorm1d(16));
    if (options.branch) branch = register_module("branch", torch::nn::Linear(16, 8));
    to(options.dtype);
    fill(*this);
    if (options.norm) {
      const at::NoGradGuard no_grad;
      norm->weight.fill_(1);
      norm->bias.fill_(0);
    }
  }
  at::Tensor forward(const at::Tensor& x, bool use_branch = false) {
    at::Tensor h = first(x).relu();
    if (!norm.is_empty()) h = norm(h);
    at::Tensor y = second(h);
    if (use_branch) y = y + branch(h);
    return third(y.relu());
  }
  torch::nn::Linear first, second, third, branch = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};

// Computes module(x) without a graph, and again in the backward pass, in another pass inside it.
class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  using Layer = std::shared_ptr<torch::nn::LinearImpl>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Layer layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer.get());
    return layer->forward(x).relu();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* const layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode with_grad(true);
    layer->forward(x).relu().backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

struct LoopedImpl : torch::nn::Module {
  LoopedImpl()
      : first(register_module("first", torch::nn::Linear(10, 8))),
        loop(register_module("loop", torch::nn::Linear(8, 8))),
        last(register_module("last", torch::nn::Linear(8, 4))) {
    to(at::kDouble);
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = first(x);
    for (int i = 0; i < 2; ++i) h = Checkpoint::apply(h, loop.ptr());
    return last(h);
  }
  torch::nn::Linear first, loop, last;
};

struct WordsImpl : torch::nn::Module {
  WordsImpl()
      : table(
            register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 10).sparse(true)))),
        last(register_module("last", torch::nn::Linear(10, 4))) {
    to(at::kDouble);
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& words) { return last(table(words)); }
  torch::nn::Embedding table;
  torch::nn::Linear last;
};

inline std::unique_ptr<torch::optim::Optimizer> sgd(const torch::nn::Module& module) {
  return std::make_unique<torch::optim::SGD>(module.parameters(),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::mse_loss(output, target);
}

}  // namespace gradwire::data_parallel::oracle
