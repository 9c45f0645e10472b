// Reinforcement learning, as in PyTorch's tutorial "Getting Started with Distributed RPC Framework". Each
// observer has an environment: a cart that must balance a pole (cart_pole.h). In each step the observer sends
// the state of its environment to the agent, which answers with an action. After an episode the agent
// improves its policy.
//
//   bazel build //tools:launch //examples/reinforcement_learning
//   bazel run //tools:launch -- --standalone --nproc_per_node=3
//     $PWD/bazel-bin/examples/reinforcement_learning/reinforcement_learning
//
// Rank 0 is the agent. It prints a line for every tenth episode. The last line is "solved: average reward R
// after N episodes", or "not solved: ...". A reward is the number of steps in which the pole did not fall.

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "examples/reinforcement_learning/cart_pole.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/launch_info.h"

ABSL_FLAG(int, episodes, 400, "largest number of episodes");
ABSL_FLAG(double, threshold, 195, "the task is solved when the average reward is above this");
ABSL_FLAG(double, gamma, 0.99, "factor by which a reward counts less for each step that it is later");
ABSL_FLAG(int, seed, 543, "seed of the random numbers");

namespace gradwire::examples {

class Observer;

// Chooses actions for all observers. A serial class, so its methods need no lock.
class Agent {
 public:
  explicit Agent(int64_t observers);

  int64_t select_action(int64_t observer, const CartPole::State& state);
  void report_reward(int64_t observer, double reward) { runs_.at(observer).rewards.push_back(reward); }

  // Runs an episode on all observers. `self` is a reference to this agent.
  void run_episode(const rpc::RRef<Agent>& self);
  // Improves the policy. Returns the smallest reward of the observers in the episode.
  double finish_episode();

 private:
  // The part of an observer in the episode. Each has random numbers of its own, so an episode does not depend
  // on which observer calls first.
  struct Run {
    std::mt19937_64 random;
    std::vector<at::Tensor> states;
    std::vector<int64_t> actions;
    std::vector<double> rewards;
  };
  at::Tensor log_probabilities(const at::Tensor& states) {
    return second_(first_(states).relu()).log_softmax(1);
  }

  std::vector<rpc::RRef<Observer>> observers_;
  std::vector<Run> runs_;
  torch::nn::Linear first_{4, 128};
  torch::nn::Linear second_{128, 2};
  std::unique_ptr<torch::optim::Adam> optimizer_;
};
GRADWIRE_RPC_SERIAL_CLASS(Agent, int64_t)
GRADWIRE_RPC_METHOD(Agent, select_action)
GRADWIRE_RPC_METHOD(Agent, report_reward)

class Observer {
 public:
  Observer(int64_t number, int64_t seed) : number_(number), environment_(seed) {}
  void run_episode(const rpc::RRef<Agent>& agent, int64_t steps) {
    CartPole::State state = environment_.reset();
    for (int64_t i = 0; i < steps && !environment_.fallen(); ++i) {
      state = environment_.step(agent.rpc_sync<&Agent::select_action>(number_, state));
      agent.rpc_sync<&Agent::report_reward>(number_, 1.0);
    }
  }

 private:
  const int64_t number_;
  CartPole environment_;
};
GRADWIRE_RPC_CLASS(Observer, int64_t, int64_t)
GRADWIRE_RPC_METHOD(Observer, run_episode)

Agent::Agent(int64_t observers) {
  std::vector<at::Tensor> parameters = first_->parameters();
  for (const at::Tensor& parameter : second_->parameters()) parameters.push_back(parameter);
  optimizer_ = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-2));
  for (int64_t i = 0; i < observers; ++i) {
    const int64_t seed = absl::GetFlag(FLAGS_seed) + i;
    runs_.push_back({std::mt19937_64(seed), {}, {}, {}});
    observers_.push_back(rpc::remote<Observer>(absl::StrCat("observer", i), i, seed));
  }
}

int64_t Agent::select_action(int64_t observer, const CartPole::State& state) {
  const at::NoGradGuard no_grad;
  Run& run = runs_.at(observer);
  run.states.push_back(at::tensor(state, at::kFloat));
  const double right = log_probabilities(run.states.back().unsqueeze(0))[0][1].exp().item<double>();
  run.actions.push_back(std::bernoulli_distribution(right)(run.random) ? 1 : 0);
  return run.actions.back();
}

void Agent::run_episode(const rpc::RRef<Agent>& self) {
  constexpr int64_t kSteps = 500;
  std::vector<Future<void>> running;
  for (const rpc::RRef<Observer>& observer : observers_)
    running.push_back(observer.rpc_async<&Observer::run_episode>(self, kSteps));
  collect(std::move(running)).wait();
}

double Agent::finish_episode() {
  double least = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> states;
  std::vector<int64_t> actions;
  std::vector<double> returns;
  for (Run& run : runs_) {
    least = std::min(least, static_cast<double>(run.rewards.size()));
    double sum = 0;
    for (std::size_t i = run.rewards.size(); i-- > 0;) {
      sum = run.rewards[i] + absl::GetFlag(FLAGS_gamma) * sum;
      run.rewards[i] = sum;
    }
    states.insert(states.end(), run.states.begin(), run.states.end());
    actions.insert(actions.end(), run.actions.begin(), run.actions.end());
    returns.insert(returns.end(), run.rewards.begin(), run.rewards.end());
    run = {run.random, {}, {}, {}};
  }
  at::Tensor weights = at::tensor(returns, at::kFloat);
  weights = (weights - weights.mean()) / (weights.std() + std::numeric_limits<float>::epsilon());
  const at::Tensor chosen =
      log_probabilities(at::stack(states)).gather(1, at::tensor(actions).unsqueeze(1)).squeeze(1);
  optimizer_->zero_grad();
  (-chosen * weights).sum().backward();
  optimizer_->step();
  return least;
}

void train(int64_t observers) {
  const auto agent = std::make_shared<Agent>(observers);
  const rpc::RRef<Agent> reference(*rpc::Agent::current(), agent);
  const int episodes = absl::GetFlag(FLAGS_episodes);
  double average = 0;
  int episode = 0;
  while (average <= absl::GetFlag(FLAGS_threshold) && episode < episodes) {
    agent->run_episode(reference);
    const double last = agent->finish_episode();
    average += 0.05 * (last - average);
    if (++episode % 10 == 0) std::printf("episode %3d  last %3.0f  average %.1f\n", episode, last, average);
    std::fflush(stdout);
  }
  std::printf("%s: average reward %.1f after %d episodes\n",
              average > absl::GetFlag(FLAGS_threshold) ? "solved" : "not solved", average, episode);
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
    at::manual_seed(absl::GetFlag(FLAGS_seed));
    rpc::init_rpc(info.rank == 0 ? "agent" : absl::StrCat("observer", info.rank - 1));
    if (info.rank == 0) examples::train(info.world_size - 1);
    rpc::shutdown();
    return 0;
  } catch (...) {
    // Converts exceptions of libtorch too, without their backtraces.
    const Error error(status_from_exception(std::current_exception()));
    record_error(error);  // for the summary of the launcher
    std::fprintf(stderr, "reinforcement_learning: %s\n", error.what());
    // The group is broken, so a graceful shutdown would wait for workers that never call it.
    rpc::shutdown(/*graceful=*/false);
    return 1;
  }
}
