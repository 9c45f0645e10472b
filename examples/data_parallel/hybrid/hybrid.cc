// A remote and a replicated part, as in PyTorch's tutorial "Combining Distributed DataParallel with
// Distributed RPC Framework". The server "ps" has a large sparse table of embeddings. Each trainer has a
// replica of a small dense network behind it. The backward pass of a step joins both in one autograd context:
// the gradients of the table travel to the server, those of the dense network are averaged.
//
//   bazel build //tools:launch //examples/data_parallel/hybrid
//   bazel run //tools:launch -- --standalone --nproc_per_node=4
//     $PWD/bazel-bin/examples/data_parallel/hybrid/hybrid
//
// The ranks are the trainers, then the "master", which starts the training, and the server. "trainer0" prints
// a line for every epoch. The last lines are "N trainers agree" and "held-out accuracy: ", the share of right
// answers for images that were not used for training.

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "examples/data/dataset.h"
#include "examples/data_parallel/agreement.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/collectives/world.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"
#include "gradwire/data_parallel/distributed_sampler.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, epochs, 15, "number of times that the data is used");
ABSL_FLAG(int, batch, 32, "samples in a step, on each trainer");
ABSL_FLAG(int, width, 32, "numbers in a row of the table");
ABSL_FLAG(double, learning_rate, 0.3, "learning rate of the optimizers, SGD");
ABSL_FLAG(int, seed, 1, "seed of the random numbers");

namespace gradwire::examples {

constexpr int64_t kPixels = 64;
constexpr int64_t kShades = 5;

// A row of numbers for each word. A step, and its gradient, use only the rows of its words.
struct TableImpl : torch::nn::Module {
  TableImpl(int64_t words, int64_t width)
      : rows(register_module(
            "rows", torch::nn::EmbeddingBag(
                        torch::nn::EmbeddingBagOptions(words, width).mode(torch::kSum).sparse(true)))) {
    const at::NoGradGuard no_grad;
    rows->weight.mul_(0.1);
  }
  // int64 [n, k], words -> float [n, width], the sum of their rows
  at::Tensor forward(const at::Tensor& words) { return rows->forward(words); }

  torch::nn::EmbeddingBag rows;
};
GRADWIRE_RPC_MODULE(TableImpl, int64_t, int64_t)

// Converts images to words, int64 [n, kPixels]: one for each pixel, from its place and its shade.
at::Tensor words_of(const at::Tensor& images) {
  const at::Tensor shades = images.mul(static_cast<double>(kShades - 1)).round().to(at::kLong);
  return shades + at::arange(images.size(1)) * kShades;
}

// Runs on each trainer. Returns the accuracy on the images that were not used for training.
double run_trainer(const rpc::RRef<TableImpl>& table_reference) {
  const collectives::Group trainers = collectives::world();
  const Dataset data = load_digits();
  const rpc::RemoteModule<TableImpl> table(table_reference);
  torch::nn::Linear dense(absl::GetFlag(FLAGS_width), data.classes);
  data_parallel::DistributedDataParallel model(dense);
  data_parallel::DistributedSampler sampler(data.train.size());

  using Optimizer = autograd::DistributedOptimizer<torch::optim::SGD>;
  const torch::optim::SGDOptions options(absl::GetFlag(FLAGS_learning_rate));
  // The trainers step the table together. With Consistency::kWait a trainer would wait for another trainer's
  // step, which in turn waits for the gradients of the first one: a deadlock.
  Optimizer table_optimizer(
      table.remote_parameters(), options,
      {.consistency = autograd::Consistency::kSync, .trainers = trainers->size(), .name = "table"});
  std::vector<rpc::RRef<at::Tensor>> dense_parameters;
  for (const at::Tensor& parameter : dense->parameters()) dense_parameters.emplace_back(parameter);
  Optimizer dense_optimizer(dense_parameters, options);

  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    sampler.set_epoch(epoch);
    double loss_sum = 0;
    int64_t steps = 0;
    for (; const auto indices = sampler.next(absl::GetFlag(FLAGS_batch)); ++steps) {
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
    if (trainers->rank() != 0) continue;
    std::printf("epoch %2d  loss %.4f\n", epoch, loss_sum / static_cast<double>(steps));
    std::fflush(stdout);
  }
  if (!replicas_agree(*trainers, *dense))
    throw Error(absl::InternalError("the trainers' dense parts differ"));
  const at::NoGradGuard no_grad;
  return accuracy(dense->forward(table.forward(words_of(data.held_out.images))), data.held_out.labels);
}
GRADWIRE_RPC(run_trainer)

double run_master(int trainers) {
  const rpc::RemoteModule<TableImpl> table("ps", kPixels * kShades, absl::GetFlag(FLAGS_width));
  std::vector<Future<double>> running;
  for (int i = 0; i < trainers; ++i) {
    // The call has no time limit, because training may take long. If the trainer dies, the call fails.
    running.push_back(rpc::rpc_async<&run_trainer>(
        rpc::Destination(absl::StrCat("trainer", i)).with_timeout(absl::InfiniteDuration()),
        table.get_module_rref()));
  }
  const std::vector<double> accuracies = collect(std::move(running)).wait();
  for (double each : accuracies) {
    if (each != accuracies[0]) throw Error(absl::InternalError("the trainers' models differ"));
  }
  return accuracies[0];
}

}  // namespace gradwire::examples

int main(int argc, char** argv) {
  using namespace gradwire;  // NOLINT
  absl::SetProgramUsageMessage("one rank of a hybrid job; start it with //tools:launch");
  try {
    if (absl::ParseCommandLine(argc, argv).size() > 1)
      throw Error(absl::InvalidArgumentError("unexpected argument: see --help for the flags"));
    const LaunchInfo info = LaunchInfo::from_env();
    const int trainers = info.world_size - 2;
    if (trainers < 1)
      throw Error(absl::InvalidArgumentError("trainers, master and server: start three processes or more"));
    at::manual_seed(absl::GetFlag(FLAGS_seed));
    if (info.rank < trainers) collectives::init_process_group({.world_size = trainers, .rank = info.rank});
    const bool is_master = info.rank == trainers;
    rpc::init_rpc(info.rank < trainers ? absl::StrCat("trainer", info.rank) : is_master ? "master" : "ps");
    double held_out = 0;
    if (is_master) held_out = examples::run_master(trainers);
    rpc::shutdown();
    collectives::destroy_process_group();
    if (is_master) std::printf("%d trainers agree\nheld-out accuracy: %.3f\n", trainers, held_out);
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    record_error(error);  // for the summary of the launcher
    std::fprintf(stderr, "hybrid: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
