// ddp_step [--rounds=N] [--steps=N]: the time that replicas add to a training step, beside torch's Reducer
// with Gloo.
//
// For each model and number of ranks it starts one process for each rank, once for each system, in turns.
// Each rank measures in turns: a step whose gradients are averaged, a step whose gradients stay on the rank,
// and an all-reduce of as many bytes. All ranks do the same at the same time, so the machine is equally busy.
// It prints one JSON object a line: `added_ms` is the median of the first minus that of the second. If it is
// less than `all_reduce_ms`, the communication has overlapped with the backward pass.

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "gradwire/base/free_port.h"
#include "gradwire/tools/bench/data_parallel/ddp_step.h"

ABSL_FLAG(int, rounds, 3, "how often each system is started");
ABSL_FLAG(int, steps, 15, "steps of each kind in a round");

namespace gradwire::bench {
namespace {

using Make = std::unique_ptr<StepReplica> (*)(int rank, int size, int port, int64_t layers, int64_t width);

struct Model {
  const char* name;
  int64_t layers, width, batch;
};
// 10 MiB and 100 MiB of float32 parameters.
constexpr Model kModels[] = {{"10MB", 10, 512, 64}, {"100MB", 25, 1024, 32}};

// Milliseconds of a step, of a step alone, and of an all-reduce.
using Times = std::array<std::vector<double>, 3>;

double milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// The work of one rank; rank 0 writes its times to `out`.
void run_rank(Make make, const Model& model, int rank, int size, int port, int steps, int out) {
  at::set_num_threads(1);
  const auto replica = make(rank, size, port, model.layers, model.width);
  const at::Tensor x = at::ones({model.batch, model.width});
  at::Tensor bytes = at::zeros({model.layers * model.width * model.width});
  const at::Tensor token = at::zeros({1});
  const std::array<std::function<void()>, 3> kinds = {
      [&] { replica->step(x); }, [&] { replica->step_alone(x); }, [&] { replica->all_reduce(bytes); }};
  // The first steps arrange the buckets and touch the memory.
  for (int i = 0; i < 3; ++i) {
    for (const auto& kind : kinds) kind();
  }
  for (int i = 0; i < steps; ++i) {
    for (const auto& kind : kinds) {
      // The ranks start together.
      replica->all_reduce(token);
      const double time = milliseconds(kind);
      if (rank == 0 && ::write(out, &time, sizeof(time)) != sizeof(time)) std::abort();
    }
  }
}

void run_round(Make make, const Model& model, int size, int steps, Times& times) {
  const int port = free_port();
  if (port == 0) throw std::runtime_error("no free port");
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        run_rank(make, model, rank, size, port, steps, ends[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  ::close(ends[1]);
  double time = 0;
  for (std::size_t i = 0; ::read(ends[0], &time, sizeof(time)) == sizeof(time); ++i) {
    times[i % 3].push_back(time);
  }
  ::close(ends[0]);
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) throw std::runtime_error("a rank has failed");
  }
}

void run() {
  for (const Model& model : kModels) {
    for (const int size : {2, 4}) {
      Times gradwire, gloo;
      for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
        run_round(&make_gradwire_replica, model, size, absl::GetFlag(FLAGS_steps), gradwire);
        run_round(&make_gloo_replica, model, size, absl::GetFlag(FLAGS_steps), gloo);
      }
      const auto added = [](const Times& times) { return median(times[0]) - median(times[1]); };
      const double mine = added(gradwire), peer = added(gloo);
      std::printf(
          "{\"suite\":\"data_parallel\",\"case\":\"ddp_step_%s_%dranks\",\"metric\":\"added_ms\","
          "\"gradwire\":%.2f,"
          "\"peer\":\"torch_reducer_gloo\",\"peer_value\":%.2f,\"ratio\":%.2f,\"step_ms\":%.2f,\"alone_ms\":%"
          ".2f,"
          "\"all_reduce_ms\":%.2f,\"peer_step_ms\":%.2f,\"peer_alone_ms\":%.2f,\"peer_all_reduce_ms\":%.2f}"
          "\n",
          model.name, size, mine, peer, peer / mine, median(gradwire[0]), median(gradwire[1]),
          median(gradwire[2]), median(gloo[0]), median(gloo[1]), median(gloo[2]));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  try {
    gradwire::bench::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddp_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
