// A parameter server and its trainers. Rank 0 is the server "ps". It owns the model's parameters, calls
// `train` on every other worker, and tests the result. The other workers serve this call.
//
//   bazel run //tools:launch -- --standalone --nproc_per_node=3
//   bazel-bin/examples/parameter_server/parameter_server

#include <ATen/ATen.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "examples/data/dataset.h"
#include "examples/parameter_server/network.h"
#include "examples/parameter_server/trainer.h"
#include "examples/worker_report.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/rref.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, epochs, 30, "number of times that each trainer uses its share of the data");
ABSL_FLAG(int, batch, 32, "samples in a step");
ABSL_FLAG(int, hidden, 128, "width of the hidden layer");
ABSL_FLAG(double, learning_rate, 0.05, "learning rate of the optimizer, SGD with momentum 0.9");
ABSL_FLAG(std::string, data, "", "directory with MNIST's four IDX files; empty: the handwritten digits");
ABSL_FLAG(int, seed, 1, "seed of the initial parameters");

namespace gradwire::examples {
namespace {

// Trains the model, and returns the accuracy on the samples that were not used for training.
double serve(int trainers) {
  at::manual_seed(absl::GetFlag(FLAGS_seed));
  const std::string directory = absl::GetFlag(FLAGS_data);
  const Dataset data = load_dataset(directory);
  auto network = std::make_shared<NetworkImpl>(data.features, absl::GetFlag(FLAGS_hidden), data.classes);
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::current();
  const rpc::RRef<NetworkImpl> reference(*agent, network);
  std::vector<rpc::RRef<at::Tensor>> parameters;
  for (const at::Tensor& parameter : network->parameters()) parameters.emplace_back(parameter);

  std::vector<Future<WorkerReport>> running;
  for (int i = 0; i < trainers; ++i) {
    TrainOptions options;
    options.trainer = i;
    options.trainers = trainers;
    options.epochs = absl::GetFlag(FLAGS_epochs);
    options.batch = absl::GetFlag(FLAGS_batch);
    options.learning_rate = absl::GetFlag(FLAGS_learning_rate);
    options.data = directory;
    // The call has no time limit, because training may take long. If the trainer dies, the call fails.
    running.push_back(rpc::rpc_async<&train>(
        rpc::Destination(absl::StrCat("trainer", i)).with_timeout(absl::InfiniteDuration()), reference,
        parameters, options));
  }
  std::vector<WorkerReport> reports = collect(std::move(running)).wait();
  reports.insert(reports.begin(), report_of(*agent));
  print_reports(reports);

  const at::NoGradGuard no_grad;
  return accuracy(network->forward(data.held_out.images), data.held_out.labels);
}

}  // namespace
}  // namespace gradwire::examples

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("one rank of a parameter server job; start it with //tools:launch");
  absl::ParseCommandLine(argc, argv);
  using namespace gradwire;  // NOLINT
  try {
    const LaunchInfo info = LaunchInfo::from_env();
    if (info.world_size < 2)
      throw Error(
          absl::InvalidArgumentError("a server needs at least one trainer: start two processes or more"));
    const bool is_server = info.rank == 0;
    rpc::init_rpc(is_server ? "ps" : absl::StrCat("trainer", info.rank - 1));
    double held_out = 0;
    if (is_server) held_out = examples::serve(info.world_size - 1);
    rpc::shutdown();
    if (is_server) std::printf("held-out accuracy: %.3f\n", held_out);
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
