// Reinforcement learning with batches, the second program of PyTorch's tutorial "Implementing Batch RPC
// Processing Using Asynchronous Executions". Each observer has an environment: a cart that must balance a
// pole. In each step all observers send their states to the agent. When the states of all of them have
// arrived, the agent runs its policy once, and answers all calls. A waiting call occupies no thread.
//
//   bazel build //tools:launch //examples/batch_rpc:reinforce
//   bazel run //tools:launch -- --standalone --nproc_per_node=3
//     $PWD/bazel-bin/examples/batch_rpc/reinforce
//
// Rank 0 is the agent. It trains twice, with batches and without, and prints a line for every fifth episode,
// and how long the training took. The last line is "average reward: ", the smaller one of both trainings: the
// number of steps in which the pole did not fall.

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/reinforcement_learning/cart_pole.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, episodes, 15, "number of episodes of a training");
ABSL_FLAG(int, steps, 200, "number of steps of each observer in an episode");
ABSL_FLAG(double, gamma, 0.99, "factor by which a reward counts less for each step that it is later");
ABSL_FLAG(int, seed, 543, "seed of the random numbers");

namespace gradwire::examples {

class Observer;

// Thread-safe. Not a serial class, because a call of select_action_batch waits for the calls of the others.
class Agent {
 public:
  Agent(int64_t observers, bool batch);

  // Completes when all observers have called it.
  Future<int64_t> select_action_batch(int64_t observer, const CartPole::State& state);
  int64_t select_action(int64_t observer, const CartPole::State& state);

  // Runs an episode on all observers, and improves the policy. `self` is a reference to this agent. Returns
  // the average number of steps before a pole fell.
  double run_episode(const rpc::RRef<Agent>& self);

 private:
  // The part of an observer in the episode. Each has random numbers of its own.
  struct Run {
    std::mt19937_64 random;
    std::vector<at::Tensor> states;
    std::vector<int64_t> actions;
  };
  at::Tensor log_probabilities(const at::Tensor& states) {
    return second_(first_(states).relu()).log_softmax(1);
  }
  int64_t sample(Run& run, const at::Tensor& log_probabilities);

  const bool batch_;
  std::vector<rpc::RRef<Observer>> observers_;
  torch::nn::Linear first_{4, 128};
  torch::nn::Linear second_{128, 2};
  std::unique_ptr<torch::optim::Adam> optimizer_;
  std::mutex mutex_;  // guards the members below
  std::vector<Run> runs_;
  std::size_t arrived_ = 0;
  Promise<std::vector<int64_t>> next_actions_;
};
GRADWIRE_RPC_CLASS(Agent, int64_t, bool)
GRADWIRE_RPC_METHOD(Agent, select_action_batch)
GRADWIRE_RPC_METHOD(Agent, select_action)

class Observer {
 public:
  Observer(int64_t number, int64_t seed) : number_(number), environment_(seed) {}
  // Takes `steps` steps, and starts again whenever the pole has fallen. Returns the discounted sum of the
  // rewards from each step on, and the number of falls.
  std::pair<std::vector<double>, int64_t> run_episode(const rpc::RRef<Agent>& agent, int64_t steps,
                                                      bool batch) {
    CartPole::State state = environment_.reset();
    std::vector<double> returns;
    int64_t falls = 0;
    std::size_t start = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t action = batch ? agent.rpc_sync<&Agent::select_action_batch>(number_, state)
                                   : agent.rpc_sync<&Agent::select_action>(number_, state);
      state = environment_.step(action);
      returns.push_back(1.0);
      if (!environment_.fallen() && i + 1 < steps) continue;
      for (std::size_t k = returns.size() - 1; k-- > start;)
        returns[k] += absl::GetFlag(FLAGS_gamma) * returns[k + 1];
      start = returns.size();
      falls += environment_.fallen() ? 1 : 0;
      state = environment_.reset();
    }
    return {returns, falls};
  }

 private:
  const int64_t number_;
  CartPole environment_;
};
GRADWIRE_RPC_CLASS(Observer, int64_t, int64_t)
GRADWIRE_RPC_METHOD(Observer, run_episode)

Agent::Agent(int64_t observers, bool batch) : batch_(batch) {
  std::vector<at::Tensor> parameters = first_->parameters();
  for (const at::Tensor& parameter : second_->parameters()) parameters.push_back(parameter);
  optimizer_ = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-2));
  for (int64_t i = 0; i < observers; ++i) {
    const int64_t seed = absl::GetFlag(FLAGS_seed) + i;
    runs_.push_back({std::mt19937_64(seed), {}, {}});
    observers_.push_back(rpc::remote<Observer>(absl::StrCat("observer", i), i, seed));
  }
}

int64_t Agent::sample(Run& run, const at::Tensor& log_probabilities) {
  const double right = log_probabilities[1].exp().item<double>();
  run.actions.push_back(std::bernoulli_distribution(right)(run.random) ? 1 : 0);
  return run.actions.back();
}

Future<int64_t> Agent::select_action_batch(int64_t observer, const CartPole::State& state) {
  const at::NoGradGuard no_grad;
  std::unique_lock<std::mutex> lock(mutex_);
  runs_.at(observer).states.push_back(at::tensor(state, at::kFloat));
  const Future<int64_t> action =
      next_actions_.future().then([observer](const std::vector<int64_t>& all) { return all.at(observer); });
  if (++arrived_ < runs_.size()) return action;
  std::vector<at::Tensor> states;
  for (const Run& run : runs_) states.push_back(run.states.back());
  const at::Tensor found = log_probabilities(at::stack(states));
  std::vector<int64_t> actions;
  for (std::size_t i = 0; i < runs_.size(); ++i)
    actions.push_back(sample(runs_[i], found[static_cast<int64_t>(i)]));
  arrived_ = 0;
  const auto complete = std::exchange(next_actions_, Promise<std::vector<int64_t>>());
  lock.unlock();  // set_value may run code of callers
  complete.set_value(std::move(actions));
  return action;
}

int64_t Agent::select_action(int64_t observer, const CartPole::State& state) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  Run& run = runs_.at(observer);
  run.states.push_back(at::tensor(state, at::kFloat));
  return sample(run, log_probabilities(run.states.back().unsqueeze(0))[0]);
}

double Agent::run_episode(const rpc::RRef<Agent>& self) {
  const int64_t steps = absl::GetFlag(FLAGS_steps);
  std::vector<Future<std::pair<std::vector<double>, int64_t>>> running;
  for (const rpc::RRef<Observer>& observer : observers_)
    running.push_back(observer.rpc_async<&Observer::run_episode>(self, steps, batch_));
  std::vector<double> returns;
  int64_t falls = 0;
  for (const auto& [each, fell] : collect(std::move(running)).wait()) {
    returns.insert(returns.end(), each.begin(), each.end());
    falls += fell;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<at::Tensor> states;
  std::vector<int64_t> actions;
  for (Run& run : runs_) {
    states.insert(states.end(), run.states.begin(), run.states.end());
    actions.insert(actions.end(), run.actions.begin(), run.actions.end());
    run = {run.random, {}, {}};
  }
  at::Tensor weights = at::tensor(returns, at::kFloat);
  weights = (weights - weights.mean()) / (weights.std() + std::numeric_limits<float>::epsilon());
  const at::Tensor chosen =
      log_probabilities(at::stack(states)).gather(1, at::tensor(actions).unsqueeze(1)).squeeze(1);
  optimizer_->zero_grad();
  (-chosen * weights).mean().backward();
  optimizer_->step();
  return static_cast<double>(returns.size()) / static_cast<double>(falls + runs_.size());
}

// Returns the average reward, in which later episodes count more.
double train(int64_t observers, bool batch) {
  at::manual_seed(absl::GetFlag(FLAGS_seed));
  const absl::Time started = absl::Now();
  const auto agent = std::make_shared<Agent>(observers, batch);
  const rpc::RRef<Agent> reference(*rpc::Agent::current(), agent);
  double average = 0;
  for (int episode = 1; episode <= absl::GetFlag(FLAGS_episodes); ++episode) {
    const double last = agent->run_episode(reference);
    average = 0.5 * last + 0.5 * average;
    if (episode % 5 == 0) std::printf("  episode %2d  last %3.0f  average %.1f\n", episode, last, average);
    std::fflush(stdout);
  }
  std::printf("%s batches: %.2f s\n", batch ? "with" : "without",
              absl::ToDoubleSeconds(absl::Now() - started));
  return average;
}

}  // namespace gradwire::examples

int main(int argc, char** argv) {
  using namespace gradwire;  // NOLINT
  absl::SetProgramUsageMessage("one rank of a job with an agent and observers; start it with //tools:launch");
  try {
    if (absl::ParseCommandLine(argc, argv).size() > 1)
      throw Error(absl::InvalidArgumentError("unexpected argument: see --help for the flags"));
    const LaunchInfo info = LaunchInfo::from_env();
    if (info.world_size < 2)
      throw Error(absl::InvalidArgumentError("an agent needs an observer: start two processes or more"));
    rpc::init_rpc(info.rank == 0 ? "agent" : absl::StrCat("observer", info.rank - 1));
    double average = 0;
    if (info.rank == 0) {
      average = examples::train(info.world_size - 1, /*batch=*/true);
      average = std::min(average, examples::train(info.world_size - 1, /*batch=*/false));
    }
    rpc::shutdown();
    if (info.rank == 0) std::printf("average reward: %.1f\n", average);
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    record_error(error);  // for the summary of the launcher
    std::fprintf(stderr, "reinforce: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
