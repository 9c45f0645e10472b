#include "gradwire/autograd/optimizer/learning_rates.h"

#include <memory>

#include "gradwire/base/error.h"

namespace gradwire::autograd {
namespace {

class Rate : public torch::optim::OptimizerCloneableOptions<Rate> {
 public:
  explicit Rate(double rate) : rate_(rate) {}
  double get_lr() const override { return rate_; }
  void set_lr(const double rate) override { rate_ = rate; }

 private:
  double rate_;
};

std::vector<torch::optim::OptimizerParamGroup> groups_of(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (double rate : rates) groups.emplace_back(std::vector<torch::Tensor>(), std::make_unique<Rate>(rate));
  return groups;
}

}  // namespace

LearningRates::LearningRates(const std::vector<double>& rates)
    : torch::optim::Optimizer(groups_of(rates), std::make_unique<Rate>(0)) {}

std::vector<double> LearningRates::get() const {
  std::vector<double> rates;
  for (const auto& group : param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void LearningRates::set(const std::vector<double>& rates) {
  for (std::size_t i = 0; i < rates.size(); ++i) param_groups().at(i).options().set_lr(rates[i]);
}

torch::Tensor LearningRates::step(LossClosure) {
  throw Error(absl::FailedPreconditionError(
      "cannot step the optimizer of schedulable(): it has no parameters; call DistributedOptimizer::step"));
}

}  // namespace gradwire::autograd
