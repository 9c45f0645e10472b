// ddp_step [--rounds=N] [--steps=N] [--cases=10MB_2,...]: the time that replicas add to a training step,
// beside torch's Reducer with Gloo.
//
// For each model and number of ranks it starts one process for each rank, for each system in turns, in
// several rounds. Each rank measures in turns: a step whose gradients are averaged, a step whose gradients
// stay on the rank, and an all-reduce of as many bytes. All ranks do the same at the same time, so the
// machine is equally busy. A round gives the median of each kind, and the smallest median of all rounds
// counts: other programs make a round slower, and none makes it faster.
//
// It prints one JSON object a line: `added_ms` is the time of the first kind minus that of the second. It
// consists of the communication that does not overlap with the backward pass, and of copying the gradients
// into their buckets.

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
#include <limits>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "gradwire/base/free_port.h"
#include "gradwire/tools/bench/data_parallel/ddp_step.h"

ABSL_FLAG(int, rounds, 3, "how often each system is started");
ABSL_FLAG(int, steps, 15, "steps of each kind in a round");
ABSL_FLAG(std::vector<std::string>, cases, {}, "only these cases, for example 10MB_2 for two ranks");

namespace gradwire::bench {
namespace {

using Make = std::unique_ptr<StepReplica> (*)(int rank, int size, int port, int64_t layers, int64_t width);

struct Model {
  const char* name;
  int64_t layers, width, batch;
};
// 10 MiB and 100 MiB of float32 parameters.
constexpr Model kModels[] = {{"10MB", 10, 512, 64}, {"100MB", 25, 1024, 32}};

// A replica needs 21 passes at most until its buckets are final.
constexpr int kFirstSteps = 22;

// Milliseconds of a step, of a step alone, and of an all-reduce.
using Times = std::array<double, 3>;

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
  // The first steps choose the buckets and touch the memory.
  for (int i = 0; i < kFirstSteps; ++i) kinds[0]();
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

// Runs one round, and lowers each of the three times if this round was faster.
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
  std::array<std::vector<double>, 3> measured;
  for (std::size_t i = 0; ::read(ends[0], &time, sizeof(time)) == sizeof(time); ++i) {
    measured[i % 3].push_back(time);
  }
  ::close(ends[0]);
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) throw std::runtime_error("a rank has failed");
  }
  for (std::size_t i = 0; i < 3; ++i) times[i] = std::min(times[i], median(std::move(measured[i])));
}

void run() {
  const std::vector<std::string> only = absl::GetFlag(FLAGS_cases);
  for (const Model& model : kModels) {
    for (const int size : {2, 4}) {
      const std::string name = std::string(model.name) + "_" + std::to_string(size);
      if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
      constexpr double kNone = std::numeric_limits<double>::infinity();
      Times gradwire = {kNone, kNone, kNone}, gloo = gradwire;
      for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
        run_round(&make_gradwire_replica, model, size, absl::GetFlag(FLAGS_steps), gradwire);
        run_round(&make_gloo_replica, model, size, absl::GetFlag(FLAGS_steps), gloo);
      }
      const double mine = gradwire[0] - gradwire[1], peer = gloo[0] - gloo[1];
      std::printf(
          "{\"suite\":\"data_parallel\",\"case\":\"ddp_step_%sranks\",\"metric\":\"added_ms\","
          "\"gradwire\":%.2f,\"peer\":\"torch_reducer_gloo\",\"peer_value\":%.2f,\"ratio\":%.2f,"
          "\"step_ms\":%.2f,\"alone_ms\":%.2f,\"all_reduce_ms\":%.2f,"
          "\"peer_step_ms\":%.2f,\"peer_alone_ms\":%.2f,\"peer_all_reduce_ms\":%.2f}\n",
          name.c_str(), mine, peer, peer / mine, gradwire[0], gradwire[1], gradwire[2], gloo[0], gloo[1],
          gloo[2]);
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
