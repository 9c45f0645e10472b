// A model split over two workers. Rank 0 has the data and computes the loss. The first half of the model is
// on "stage1", the second on "stage2". Activations travel forward and gradients back. No worker has the whole
// model.
//
//   bazel run //tools:launch -- --standalone --nproc_per_node=3
//   bazel-bin/examples/remote_pipeline/remote_pipeline

#include <ATen/ATen.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/data/dataset.h"
#include "examples/remote_pipeline/stages.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, epochs, 15, "how often to go through the data");
ABSL_FLAG(int, batch, 32, "samples in a step");
ABSL_FLAG(int, hidden, 128, "width of the layer between the halves");
ABSL_FLAG(double, learning_rate, 0.002, "of the optimizer, Adam");
ABSL_FLAG(std::string, data, "", "directory with MNIST's four IDX files; empty: the handwritten digits");

namespace gradwire::examples {
namespace {

double train() {
  const Dataset data = load_dataset(absl::GetFlag(FLAGS_data));
  const int64_t hidden = absl::GetFlag(FLAGS_hidden);
  const int64_t batch_size = absl::GetFlag(FLAGS_batch);
  rpc::RemoteModule<FirstStageImpl> first("stage1/cpu", data.features, hidden);
  rpc::RemoteModule<SecondStageImpl> second("stage2/cpu", hidden, data.classes);

  std::vector<rpc::RRef<at::Tensor>> parameters = first.remote_parameters();
  for (rpc::RRef<at::Tensor>& parameter : second.remote_parameters())
    parameters.push_back(std::move(parameter));
  autograd::DistributedOptimizer<torch::optim::Adam> optimizer(
      parameters, torch::optim::AdamOptions(absl::GetFlag(FLAGS_learning_rate)));

  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    const absl::Time started = absl::Now();
    const at::Tensor order = at::randperm(data.train.size());
    double loss_sum = 0;
    int64_t steps = 0;
    for (int64_t at = 0; at < data.train.size(); at += batch_size, ++steps) {
      const at::Tensor batch = order.slice(0, at, std::min(at + batch_size, data.train.size()));

      autograd::Context context;
      const at::Tensor scores = second.forward(first.forward(data.train.images.index_select(0, batch)));
      const at::Tensor loss = at::cross_entropy_loss(scores, data.train.labels.index_select(0, batch));
      autograd::backward(context, {loss});
      optimizer.step(context);

      loss_sum += loss.item<double>();
    }
    const double seconds = absl::ToDoubleSeconds(absl::Now() - started);
    std::printf("epoch %2d  loss %.4f  %.0f steps/s  RPC p50 %.0f us\n", epoch,
                loss_sum / static_cast<double>(steps), static_cast<double>(steps) / seconds,
                absl::ToDoubleMicroseconds(rpc::Agent::current()->statistics().call_p50));
    std::fflush(stdout);
  }
  const at::NoGradGuard no_grad;
  return accuracy(second.forward(first.forward(data.held_out.images)), data.held_out.labels);
}

}  // namespace
}  // namespace gradwire::examples

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("one of the three ranks of a pipeline job; start it with //tools:launch");
  absl::ParseCommandLine(argc, argv);
  using namespace gradwire;  // NOLINT
  try {
    const LaunchInfo info = LaunchInfo::from_env();
    if (info.world_size != 3) throw Error(absl::InvalidArgumentError("the pipeline takes three processes"));
    rpc::init_rpc(info.rank == 0 ? "trainer" : absl::StrCat("stage", info.rank));
    double held_out = 0;
    if (info.rank == 0) held_out = examples::train();
    rpc::shutdown();
    if (info.rank == 0) std::printf("held-out accuracy: %.3f\n", held_out);
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    std::fprintf(stderr, "remote_pipeline: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
