#include "examples/parameter_server/trainer.h"

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "absl/time/clock.h"
#include "examples/data/dataset.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/rpc/registration.h"
#include "gradwire/rpc/remote_module.h"

namespace gradwire::examples {

GRADWIRE_RPC(train)

WorkerReport train(const rpc::RRef<NetworkImpl>& network,
                   const std::vector<rpc::RRef<at::Tensor>>& parameters, const TrainOptions& options) {
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::current();
  const std::string name = agent->get_worker_info().name;
  const Samples samples = load_dataset(options.data).train.share(options.trainer, options.trainers);

  rpc::RemoteModule<NetworkImpl> model(network);
  autograd::DistributedOptimizer<torch::optim::SGD> optimizer(
      parameters, torch::optim::SGDOptions(options.learning_rate).momentum(0.9),
      {.trainers = options.trainers, .name = "sgd"});

  for (int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    const absl::Time started = absl::Now();
    const at::Tensor order = at::randperm(samples.size());
    double loss_sum = 0;
    double correct = 0;
    int64_t steps = 0;
    for (int64_t first = 0; first < samples.size(); first += options.batch, ++steps) {
      const at::Tensor batch = order.slice(0, first, std::min(first + options.batch, samples.size()));
      const at::Tensor labels = samples.labels.index_select(0, batch);

      autograd::Context context;
      const at::Tensor scores = model.forward(samples.images.index_select(0, batch));
      const at::Tensor loss = at::cross_entropy_loss(scores, labels);
      autograd::backward(context, {loss});
      optimizer.step(context);

      loss_sum += loss.item<double>();
      correct += accuracy(scores.detach(), labels) * static_cast<double>(labels.size(0));
    }
    const double seconds = absl::ToDoubleSeconds(absl::Now() - started);
    std::printf("%s  epoch %2lld  loss %.4f  accuracy %.3f  %.0f steps/s  RPC p50 %.0f us\n", name.c_str(),
                static_cast<long long>(epoch), loss_sum / static_cast<double>(steps),
                correct / static_cast<double>(samples.size()), static_cast<double>(steps) / seconds,
                absl::ToDoubleMicroseconds(agent->statistics().call_p50));
    std::fflush(stdout);
  }
  return report_of(*agent);
}

}  // namespace gradwire::examples
