#include "examples/data_parallel/hybrid/trainer.h"

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "examples/data/dataset.h"
#include "examples/data_parallel/agreement.h"
#include "examples/data_parallel/network.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"
#include "gradwire/data_parallel/distributed_sampler.h"
#include "gradwire/rpc/registration.h"
#include "gradwire/rpc/remote_module.h"

namespace gradwire::examples {

GRADWIRE_RPC(train_hybrid)

namespace {

using Optimizer = autograd::DistributedOptimizer<torch::optim::SGD>;

collectives::Group& trainers() {
  static auto* const group = new collectives::Group;
  return *group;
}

std::vector<rpc::RRef<at::Tensor>> references_to(const std::vector<at::Tensor>& parameters) {
  std::vector<rpc::RRef<at::Tensor>> references;
  for (const at::Tensor& parameter : parameters) references.emplace_back(parameter);
  return references;
}

}  // namespace

void set_trainers(collectives::Group group) { trainers() = std::move(group); }

double train_hybrid(const rpc::RRef<TableImpl>& table_reference, const HybridOptions& options) {
  const auto [epochs, batch_size, width, hidden, learning_rate] = options;
  const collectives::Group group = trainers();
  const Dataset data = load_digits();
  const rpc::RemoteModule<TableImpl> table(table_reference);
  auto dense = std::make_shared<DigitsNetworkImpl>(width, hidden, data.classes);
  collectives::DistributedDataParallel model(dense, {.group = group});
  collectives::DistributedSampler sampler(data.train.size(),
                                          {.num_replicas = group->size(), .rank = group->rank()});
  // The trainers step together. With Consistency::kWait a trainer would wait for another trainer's step,
  // which in turn waits for the gradients of the first one: a deadlock.
  Optimizer table_optimizer(
      table.remote_parameters(), torch::optim::SGDOptions(learning_rate),
      {.consistency = autograd::Consistency::kSync, .trainers = group->size(), .name = "table"});
  Optimizer dense_optimizer(references_to(dense->parameters()), torch::optim::SGDOptions(learning_rate));

  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    sampler.set_epoch(epoch);
    double loss_sum = 0;
    int64_t steps = 0;
    for (; const auto indices = sampler.next(batch_size); ++steps) {
      const at::Tensor batch = at::tensor(std::vector<int64_t>(indices->begin(), indices->end()));
      const at::Tensor words = words_of(data.train.images.index_select(0, batch));

      autograd::Context context;
      const at::Tensor scores = model.forward(table.forward(words));
      const at::Tensor loss = at::cross_entropy_loss(scores, data.train.labels.index_select(0, batch));
      autograd::backward(context, {loss});
      dense_optimizer.step(context);
      table_optimizer.step(context);
      loss_sum += loss.item<double>();
    }
    if (group->rank() != 0) continue;
    std::printf("epoch %2lld  loss %.4f\n", static_cast<long long>(epoch),
                loss_sum / static_cast<double>(steps));
    std::fflush(stdout);
  }
  if (!replicas_agree(*group, *dense)) throw Error(absl::InternalError("the trainers' dense parts differ"));
  const at::NoGradGuard no_grad;
  return accuracy(dense->forward(table.forward(words_of(data.held_out.images))), data.held_out.labels);
}

}  // namespace gradwire::examples
