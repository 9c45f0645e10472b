// A pipeline over two workers, as in PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC". The
// model is split in two shards, one on "worker1" and one on "worker2". The "master" has the data and computes
// the loss. It splits each batch into micro-batches: while the second shard computes one of them, the first
// shard computes the next. No worker has the whole model.
//
//   bazel build //tools:launch //examples/remote_pipeline
//   bazel run //tools:launch -- --standalone --nproc_per_node=3
//     $PWD/bazel-bin/examples/remote_pipeline/remote_pipeline
//
// It trains a new model for each number of micro-batches in a batch: 1, 2, 4 and 8. The master prints a line
// for each epoch, and the time that each model took. The last line is "held-out accuracy: ", the smallest
// share of right answers of these models for images that were not used for training.

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/data/dataset.h"
#include "examples/remote_pipeline/shards.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, epochs, 3, "number of times that the data is used");
ABSL_FLAG(int, batch, 120, "samples in a step");
ABSL_FLAG(int, channels, 8, "channels between the shards");
ABSL_FLAG(double, learning_rate, 0.05, "learning rate of the optimizer, SGD with momentum 0.9");
ABSL_FLAG(std::string, data, "", "directory with MNIST's four IDX files; empty: the handwritten digits");
ABSL_FLAG(int, seed, 1, "seed of the random numbers");

namespace gradwire::examples {
namespace {

class Pipeline {
 public:
  Pipeline(int64_t splits, int64_t channels, int64_t classes)
      : splits_(splits), first_("worker1", channels), second_("worker2", channels, classes) {}

  // float [n, features] -> scores, float [n, classes]. Nothing here waits before all calls are under way.
  at::Tensor forward(const at::Tensor& images) const {
    std::vector<Future<at::Tensor>> scores;
    for (const at::Tensor& part : images.chunk(splits_)) {
      const rpc::RRef<at::Tensor> x(part);
      const rpc::RRef<at::Tensor> y = first_.get_module_rref().remote<&FirstShardImpl::forward>(x);
      scores.push_back(second_.forward_async(y));
    }
    return at::cat(collect(std::move(scores)).wait());
  }
  std::vector<rpc::RRef<at::Tensor>> parameter_rrefs() const {
    std::vector<rpc::RRef<at::Tensor>> all = first_.remote_parameters();
    for (const rpc::RRef<at::Tensor>& parameter : second_.remote_parameters()) all.push_back(parameter);
    return all;
  }
  void eval() const {
    first_.eval();
    second_.eval();
  }

 private:
  const int64_t splits_;
  const rpc::RemoteModule<FirstShardImpl> first_;
  const rpc::RemoteModule<SecondShardImpl> second_;
};

// Trains a model, and returns its accuracy on the samples that were not used for training.
double train(const Dataset& data, int64_t splits) {
  const absl::Time started = absl::Now();
  const Pipeline model(splits, absl::GetFlag(FLAGS_channels), data.classes);
  autograd::DistributedOptimizer<torch::optim::SGD> optimizer(
      model.parameter_rrefs(), torch::optim::SGDOptions(absl::GetFlag(FLAGS_learning_rate)).momentum(0.9));
  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    const std::vector<at::Tensor> batches = at::randperm(data.train.size()).split(absl::GetFlag(FLAGS_batch));
    double loss_sum = 0;
    for (const at::Tensor& batch : batches) {
      autograd::Context context;
      const at::Tensor scores = model.forward(data.train.images.index_select(0, batch));
      const at::Tensor loss = at::cross_entropy_loss(scores, data.train.labels.index_select(0, batch));
      autograd::backward(context, {loss});
      optimizer.step(context);
      loss_sum += loss.item<double>();
    }
    std::printf("  epoch %2d  loss %.4f\n", epoch, loss_sum / static_cast<double>(batches.size()));
    std::fflush(stdout);
  }
  std::printf("number of splits = %lld, execution time = %.2f s\n", static_cast<long long>(splits),
              absl::ToDoubleSeconds(absl::Now() - started));
  model.eval();
  const at::NoGradGuard no_grad;
  return accuracy(model.forward(data.held_out.images), data.held_out.labels);
}

double run_master() {
  const Dataset data = load_dataset(absl::GetFlag(FLAGS_data));
  double least = 1;
  for (int64_t splits : {1, 2, 4, 8}) least = std::min(least, train(data, splits));
  return least;
}

}  // namespace
}  // namespace gradwire::examples

int main(int argc, char** argv) {
  using namespace gradwire;  // NOLINT
  absl::SetProgramUsageMessage("one of the three ranks of a pipeline job; start it with //tools:launch");
  try {
    if (absl::ParseCommandLine(argc, argv).size() > 1)
      throw Error(absl::InvalidArgumentError("unexpected argument: see --help for the flags"));
    const LaunchInfo info = LaunchInfo::from_env();
    if (info.world_size != 3)
      throw Error(absl::InvalidArgumentError("wrong number of processes: start it with --nproc_per_node=3"));
    at::manual_seed(absl::GetFlag(FLAGS_seed));
    rpc::init_rpc(info.rank == 0 ? "master" : absl::StrCat("worker", info.rank));
    double held_out = 0;
    if (info.rank == 0) held_out = examples::run_master();
    rpc::shutdown();
    if (info.rank == 0) std::printf("held-out accuracy: %.3f\n", held_out);
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    record_error(error);  // for the summary of the launcher
    std::fprintf(stderr, "remote_pipeline: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
