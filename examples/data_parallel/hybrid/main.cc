// A model with two parts. Rank 0, the server "ps", owns a large sparse table. The other ranks, the trainers,
// each have a replica of a small dense network. The backward pass of a step joins both in one autograd
// context: the gradients of the table travel to the server, and those of the dense network are averaged among
// the trainers.
//
//   bazel run //tools:launch -- --standalone --nproc_per_node=3
//     bazel-bin/examples/data_parallel/hybrid/hybrid

#include <ATen/ATen.h>

#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "examples/data_parallel/hybrid/table.h"
#include "examples/data_parallel/hybrid/trainer.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/collectives/world.h"
#include "gradwire/rpc/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, epochs, 15, "number of times that the data is used");
ABSL_FLAG(int, batch, 32, "samples in a step, on each trainer");
ABSL_FLAG(int, width, 32, "numbers in a row of the table");
ABSL_FLAG(int, hidden, 64, "width of the dense network's hidden layer");
ABSL_FLAG(double, learning_rate, 0.3, "learning rate of the optimizers, SGD");

namespace gradwire::examples {
namespace {

constexpr int64_t kPixels = 64;

double serve(int trainers) {
  const auto table = std::make_shared<TableImpl>(kPixels * kShades, absl::GetFlag(FLAGS_width));
  const rpc::RRef<TableImpl> reference(*rpc::Agent::current(), table);
  const HybridOptions options(absl::GetFlag(FLAGS_epochs), absl::GetFlag(FLAGS_batch),
                              absl::GetFlag(FLAGS_width), absl::GetFlag(FLAGS_hidden),
                              absl::GetFlag(FLAGS_learning_rate));
  std::vector<Future<double>> running;
  for (int i = 0; i < trainers; ++i) {
    // The call has no time limit, because training may take long. If the trainer dies, the call fails.
    running.push_back(rpc::rpc_async<&train_hybrid>(
        rpc::Destination(absl::StrCat("trainer", i)).with_timeout(absl::InfiniteDuration()), reference,
        options));
  }
  const std::vector<double> accuracies = collect(std::move(running)).wait();
  for (double each : accuracies) {
    if (each != accuracies[0]) throw Error(absl::InternalError("the trainers' models differ"));
  }
  return accuracies[0];
}

}  // namespace
}  // namespace gradwire::examples

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("one rank of a hybrid job; start it with //tools:launch");
  absl::ParseCommandLine(argc, argv);
  using namespace gradwire;  // NOLINT
  try {
    const LaunchInfo info = LaunchInfo::from_env();
    if (info.world_size < 2)
      throw Error(
          absl::InvalidArgumentError("a server needs at least one trainer: start two processes or more"));
    const bool is_server = info.rank == 0;
    collectives::init_process_group();
    std::vector<int> trainers(info.world_size - 1);
    std::iota(trainers.begin(), trainers.end(), 1);
    // Every rank of the world calls new_group, also the server, although it is not a member.
    examples::set_trainers(collectives::world()->new_group(trainers));
    rpc::init_rpc(is_server ? "ps" : absl::StrCat("trainer", info.rank - 1));
    double held_out = 0;
    if (is_server) held_out = examples::serve(info.world_size - 1);
    rpc::shutdown();
    examples::set_trainers(nullptr);
    collectives::destroy_process_group();
    if (is_server) std::printf("%d trainers agree\nheld-out accuracy: %.3f\n", info.world_size - 1, held_out);
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    std::fprintf(stderr, "hybrid: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
