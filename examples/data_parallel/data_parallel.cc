// Data parallel training. Every rank has a replica of the model and its own share of each epoch's samples.
// Gradients are averaged while the backward pass runs. Rank 0 prints the results.
//
//   bazel run //tools:launch -- --standalone --nproc_per_node=2
//     bazel-bin/examples/data_parallel/data_parallel

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/time/clock.h"
#include "examples/data/dataset.h"
#include "examples/data_parallel/agreement.h"
#include "examples/data_parallel/network.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/world.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"
#include "gradwire/data_parallel/distributed_sampler.h"

ABSL_FLAG(int, epochs, 40, "number of times that the data is used");
ABSL_FLAG(int, batch, 32, "samples in a step, on each rank");
ABSL_FLAG(int, hidden, 128, "width of the hidden layer");
ABSL_FLAG(double, learning_rate, 0.05, "learning rate of the optimizer, SGD with momentum 0.9");
ABSL_FLAG(std::string, data, "", "directory with MNIST's four IDX files; empty: the handwritten digits");

namespace gradwire::examples {
namespace {

void train() {
  const collectives::Group world = collectives::world();
  const Dataset data = load_dataset(absl::GetFlag(FLAGS_data));
  // Each rank creates its own parameters. DistributedDataParallel replaces them by those of rank 0.
  auto network =
      std::make_shared<DigitsNetworkImpl>(data.features, absl::GetFlag(FLAGS_hidden), data.classes);
  data_parallel::DistributedDataParallel model(network);
  data_parallel::DistributedSampler sampler(data.train.size());
  torch::optim::SGD optimizer(network->parameters(),
                              torch::optim::SGDOptions(absl::GetFlag(FLAGS_learning_rate)).momentum(0.9));

  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    const absl::Time started = absl::Now();
    sampler.set_epoch(epoch);
    // The sums of losses, correct answers and samples.
    at::Tensor sums = at::zeros({3}, at::kDouble);
    while (const auto indices = sampler.next(absl::GetFlag(FLAGS_batch))) {
      const at::Tensor batch = at::tensor(std::vector<int64_t>(indices->begin(), indices->end()));
      const at::Tensor labels = data.train.labels.index_select(0, batch);
      optimizer.zero_grad();
      const at::Tensor scores = model.forward(data.train.images.index_select(0, batch));
      const at::Tensor loss = at::cross_entropy_loss(scores, labels);
      loss.backward();
      optimizer.step();
      const auto n = static_cast<double>(labels.size(0));
      sums += at::tensor({loss.item<double>() * n, accuracy(scores.detach(), labels) * n, n}, at::kDouble);
    }
    world->all_reduce(sums);
    if (world->rank() != 0) continue;
    const double* sum = sums.data_ptr<double>();
    std::printf("epoch %2d  loss %.4f  accuracy %.3f  %.0f samples/s\n", epoch, sum[0] / sum[2],
                sum[1] / sum[2], sum[2] / absl::ToDoubleSeconds(absl::Now() - started));
    std::fflush(stdout);
  }

  if (!replicas_agree(*world, *network)) throw Error(absl::InternalError("the ranks' parameters differ"));
  if (world->rank() != 0) return;
  const at::NoGradGuard no_grad;
  std::printf("%d ranks have the same parameters\n", world->size());
  std::printf("held-out accuracy: %.3f\n",
              accuracy(network->forward(data.held_out.images), data.held_out.labels));
}

}  // namespace
}  // namespace gradwire::examples

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("one rank of a data parallel job; start it with //tools:launch");
  absl::ParseCommandLine(argc, argv);
  using namespace gradwire;  // NOLINT
  try {
    collectives::init_process_group();
    examples::train();
    collectives::destroy_process_group();
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    std::fprintf(stderr, "data_parallel: %s\n", error.what());
    return 1;
  }
}
