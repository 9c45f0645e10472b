// A parameter server that updates in batches, as in PyTorch's tutorial "Implementing Batch RPC Processing
// Using Asynchronous Executions". The trainers compute gradients and send them to the server. The call of a
// trainer ends when the gradients of all trainers have arrived and the server has stepped: its result is the
// updated model. Until then it occupies no thread of the server.
//
//   bazel build //tools:launch //examples/batch_rpc:parameter_server
//   bazel run //tools:launch -- --standalone --nproc_per_node=4
//     $PWD/bazel-bin/examples/batch_rpc/parameter_server
//
// Rank 0 is the server "ps", the others are trainers. "trainer0" prints a line for every epoch. The last line
// is "held-out accuracy: ", the share of right answers for images that were not used for training.

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "examples/data/dataset.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, epochs, 12, "number of times that each trainer uses its share of the data");
ABSL_FLAG(int, batch, 20, "samples in a step, on each trainer");
ABSL_FLAG(double, learning_rate, 0.1, "learning rate of the optimizer, SGD with momentum 0.9");
ABSL_FLAG(int, seed, 1, "seed of the random numbers");

namespace gradwire::examples {

// One tensor for each parameter of the network.
using Tensors = std::vector<at::Tensor>;

torch::nn::Sequential make_network() {
  return torch::nn::Sequential(torch::nn::Linear(64, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
}

class BatchUpdateParameterServer {
 public:
  explicit BatchUpdateParameterServer(int64_t batch_update_size) : batch_update_size_(batch_update_size) {
    for (const at::Tensor& parameter : model_->parameters())
      parameter.mutable_grad() = at::zeros_like(parameter);
  }

  Tensors get_model() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return copy_of_model();
  }

  // Completes with the updated model when `batch_update_size` gradients have arrived, this one included.
  Future<Tensors> update_and_fetch_model(const Tensors& gradients) {
    std::unique_lock<std::mutex> lock(mutex_);
    const Tensors parameters = model_->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() += gradients.at(i);
    // This call gets the model of this batch, also if the batch is complete now and the next one begins.
    const Future<Tensors> updated = next_model_.future();
    if (++received_ < batch_update_size_) return updated;
    for (const at::Tensor& parameter : parameters) parameter.mutable_grad() /= batch_update_size_;
    optimizer_.step();
    optimizer_.zero_grad(/*set_to_none=*/false);
    received_ = 0;
    const Promise<Tensors> complete = std::exchange(next_model_, Promise<Tensors>());
    Tensors model = copy_of_model();
    lock.unlock();  // set_value may run code of callers
    complete.set_value(std::move(model));
    return updated;
  }

  double held_out_accuracy() {
    const at::NoGradGuard no_grad;
    const Samples samples = load_digits().held_out;
    return accuracy(model_->forward(samples.images), samples.labels);
  }

 private:
  Tensors copy_of_model() const {
    Tensors copy;
    for (const at::Tensor& parameter : model_->parameters()) copy.push_back(parameter.detach().clone());
    return copy;
  }

  std::mutex mutex_;
  torch::nn::Sequential model_ = make_network();
  torch::optim::SGD optimizer_{model_->parameters(),
                               torch::optim::SGDOptions(absl::GetFlag(FLAGS_learning_rate)).momentum(0.9)};
  const int64_t batch_update_size_;
  int64_t received_ = 0;
  Promise<Tensors> next_model_;
};
GRADWIRE_RPC_CLASS(BatchUpdateParameterServer, int64_t)
GRADWIRE_RPC_METHOD(BatchUpdateParameterServer, get_model)
GRADWIRE_RPC_METHOD(BatchUpdateParameterServer, update_and_fetch_model)

class Trainer {
 public:
  Trainer(rpc::RRef<BatchUpdateParameterServer> ps, int64_t trainer, int64_t trainers)
      : ps_(std::move(ps)),
        data_(load_digits().train),
        samples_(data_.share(trainer, trainers)),
        batches_(data_.size() / trainers / absl::GetFlag(FLAGS_batch)),
        prints_(trainer == 0) {
    load(ps_.rpc_sync<&BatchUpdateParameterServer::get_model>());
  }

  void train() {
    for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
      const Tensors order = at::randperm(samples_.size()).split(absl::GetFlag(FLAGS_batch));
      double loss_sum = 0;
      for (int64_t i = 0; i < batches_; ++i) loss_sum += step(order[i]);
      if (!prints_) continue;
      std::printf("epoch %2d  loss %.4f\n", epoch, loss_sum / static_cast<double>(batches_));
      std::fflush(stdout);
    }
  }

 private:
  double step(const at::Tensor& batch) {
    const at::Tensor scores = model_->forward(samples_.images.index_select(0, batch));
    const at::Tensor loss = at::cross_entropy_loss(scores, samples_.labels.index_select(0, batch));
    model_->zero_grad();
    loss.backward();
    Tensors gradients;
    for (const at::Tensor& parameter : model_->parameters()) gradients.push_back(parameter.grad());
    load(ps_.rpc_sync<&BatchUpdateParameterServer::update_and_fetch_model>(gradients));
    return loss.item<double>();
  }
  void load(const Tensors& values) {
    const at::NoGradGuard no_grad;
    const Tensors parameters = model_->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(values.at(i));
  }

  const rpc::RRef<BatchUpdateParameterServer> ps_;
  const Samples data_;
  const Samples samples_;  // this trainer's share of the data
  const int64_t batches_;  // in an epoch: the same number for all trainers, because the server waits for all
  const bool prints_;
  torch::nn::Sequential model_ = make_network();
};

void run_trainer(const rpc::RRef<BatchUpdateParameterServer>& ps, int64_t trainer, int64_t trainers) {
  Trainer(ps, trainer, trainers).train();
}
GRADWIRE_RPC(run_trainer)

double run_ps(int trainers) {
  const auto ps = std::make_shared<BatchUpdateParameterServer>(trainers);
  const rpc::RRef<BatchUpdateParameterServer> reference(*rpc::Agent::current(), ps);
  std::vector<Future<void>> running;
  for (int i = 0; i < trainers; ++i)
    running.push_back(rpc::rpc_async<&run_trainer>(absl::StrCat("trainer", i), reference, i, trainers));
  collect(std::move(running)).wait();
  return ps->held_out_accuracy();
}

}  // namespace gradwire::examples

int main(int argc, char** argv) {
  using namespace gradwire;  // NOLINT
  absl::SetProgramUsageMessage("one rank of a job with a parameter server; start it with //tools:launch");
  try {
    if (absl::ParseCommandLine(argc, argv).size() > 1)
      throw Error(absl::InvalidArgumentError("unexpected argument: see --help for the flags"));
    const LaunchInfo info = LaunchInfo::from_env();
    if (info.world_size < 2)
      throw Error(absl::InvalidArgumentError("a server needs a trainer: start two processes or more"));
    at::manual_seed(absl::GetFlag(FLAGS_seed) + info.rank);
    rpc::init_rpc(info.rank == 0 ? "ps" : absl::StrCat("trainer", info.rank - 1));
    double held_out = 0;
    if (info.rank == 0) held_out = examples::run_ps(info.world_size - 1);
    rpc::shutdown();
    if (info.rank == 0) std::printf("held-out accuracy: %.3f\n", held_out);
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    record_error(error);  // for the summary of the launcher
    std::fprintf(stderr, "parameter_server: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
