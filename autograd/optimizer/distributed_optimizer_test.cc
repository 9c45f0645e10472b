// Tests of several trainers on the same parameters.
#include "gradwire/autograd/distributed_optimizer.h"

#include <torch/types.h>

#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using rpc::Agent;
using rpc::AgentGuard;
using rpc::RRef;
using rpc::testing::Group;
using ::testing::HasSubstr;
using torch::Tensor;

// Parameters on a server.
class Server {
 public:
  explicit Server(const Tensor& weight) : weight_(weight.detach().clone().requires_grad_()) {}
  RRef<Tensor> parameter() { return RRef<Tensor>(weight_); }
  Tensor value() { return weight_.detach().clone(); }
  Tensor forward(const Tensor& x) { return (x * weight_).tanh() * weight_; }
  // Also returns the parameters that the forward used.
  std::pair<Tensor, Tensor> forward_and_weight(const Tensor& x) {
    return {forward(x), weight_.detach().clone()};
  }
  Tensor gradient(int64_t context) { return get_gradients(context).at(weight_); }

 private:
  Tensor weight_;
};
GRADWIRE_RPC_CLASS(Server, Tensor)
GRADWIRE_RPC_METHOD(Server, parameter)
GRADWIRE_RPC_METHOD(Server, value)
GRADWIRE_RPC_METHOD(Server, forward)
GRADWIRE_RPC_METHOD(Server, forward_and_weight)
GRADWIRE_RPC_METHOD(Server, gradient)

Tensor forward_here(const Tensor& x, const Tensor& weight) { return (x * weight).tanh() * weight; }

Tensor batch(int trainer, int step) {
  return torch::sin(torch::arange(6, torch::kFloat) * (1.0 + trainer) + 0.7 * step) + 0.2 * trainer;
}

void random_delay(std::mt19937& random) {
  // The tests must cover steps that take different times.
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
}

// The servers of a test, by worker. Every trainer gets its own reference.
struct Servers {
  Mutex mutex;
  std::map<std::string, RRef<Server>> by_worker;
};
Servers* servers = nullptr;

RRef<Server> server_here(const Tensor& initial) {
  MutexLock lock(servers->mutex);
  auto [found, is_new] = servers->by_worker.try_emplace(Agent::current()->services().self().name);
  if (is_new) found->second = RRef<Server>(Server(initial));
  return found->second;
}
GRADWIRE_RPC(server_here)

class Trainers : public ::testing::Test {
 protected:
  void SetUp() override { servers = &servers_; }

  // Runs `body` for each trainer on its own thread and agent. The first `owners` workers are servers, the
  // others trainers. An exception of a trainer fails the test.
  void run(Group& group, int owners, const std::function<void(int trainer, Agent& agent)>& body) {
    std::vector<std::thread> threads;
    for (int t = 0; t < static_cast<int>(group.size()) - owners; ++t) {
      threads.emplace_back([&, t] {
        AgentGuard guard(group[owners + t]);
        try {
          body(t, *group[owners + t]);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "trainer " << t << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void TearDown() override { servers = nullptr; }
  // Destroys the references, which must happen before the group is destroyed.
  void forget() {
    MutexLock lock(servers_.mutex);
    servers_.by_worker.clear();
  }

  Servers servers_;
};

template <class O>
Tensor averaged_here(const Tensor& initial, int trainers, int steps,
                     typename OptimizerTraits<O>::Options options) {
  Tensor weight = initial.clone().requires_grad_();
  O optimizer(std::vector<Tensor>{weight}, options);
  for (int step = 0; step < steps; ++step) {
    Tensor sum;
    for (int t = 0; t < trainers; ++t) {
      optimizer.zero_grad();
      forward_here(batch(t, step), weight).sum().backward();
      sum = sum.defined() ? sum + weight.grad() : weight.grad().clone();
    }
    weight.mutable_grad() = sum / static_cast<double>(trainers);
    optimizer.step();
  }
  return weight.detach();
}

template <class O>
void train_in_step(Group& group, int trainer, Agent& agent, const Tensor& initial,
                   typename OptimizerTraits<O>::Options options, std::vector<Tensor>& results) {
  std::mt19937 random(static_cast<uint32_t>(trainer));
  RRef<Server> server = agent.rpc_sync<&server_here>("worker0", initial);
  DistributedOptimizer<O> optimizer({server.rpc_sync<&Server::parameter>()}, options,
                                    {.consistency = Consistency::kSync, .trainers = 2, .name = "shared"});
  for (int step = 0; step < 20; ++step) {
    Context context;
    random_delay(random);
    Tensor loss = server.rpc_sync<&Server::forward>(batch(trainer, step)).sum();
    random_delay(random);
    backward(context, {loss}, {.timeout = absl::Seconds(30)});
    random_delay(random);
    optimizer.step(context);
  }
  results[static_cast<std::size_t>(trainer)] = server.rpc_sync<&Server::value>();
}

TEST_F(Trainers, SyncSgdEqualsOneProcessThatAverages) {
  Group group(3);
  const Tensor initial = torch::linspace(-1, 1, 6);
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  std::vector<Tensor> results(2);
  run(group, 1, [&](int t, Agent& agent) {
    train_in_step<torch::optim::SGD>(group, t, agent, initial, options, results);
  });
  const Tensor expected = averaged_here<torch::optim::SGD>(initial, 2, 20, options);
  EXPECT_TRUE(torch::equal(results[0], expected));
  EXPECT_TRUE(torch::equal(results[1], expected));
  forget();
}

TEST_F(Trainers, SyncAdamEqualsOneProcessThatAverages) {
  Group group(3);
  const Tensor initial = torch::linspace(-1, 1, 6);
  const torch::optim::AdamOptions options(0.05);
  std::vector<Tensor> results(2);
  run(group, 1, [&](int t, Agent& agent) {
    train_in_step<torch::optim::Adam>(group, t, agent, initial, options, results);
  });
  const Tensor expected = averaged_here<torch::optim::Adam>(initial, 2, 20, options);
  EXPECT_TRUE(torch::equal(results[0], expected));
  EXPECT_TRUE(torch::equal(results[1], expected));
  forget();
}

// Every gradient equals the gradient that is computed separately with the parameters that its forward used.
// This also holds for parameters on two owners, which the trainers visit in opposite order.
template <class O>
void expect_undisturbed(Group& group, int trainer, Agent& agent,
                        typename OptimizerTraits<O>::Options options) {
  std::mt19937 random(static_cast<uint32_t>(trainer));
  const Tensor initial = torch::linspace(-1, 1, 6);
  RRef<Server> mine[2] = {agent.rpc_sync<&server_here>("worker0", initial),
                          agent.rpc_sync<&server_here>("worker1", initial)};
  DistributedOptimizer<O> optimizer(
      {mine[0].rpc_sync<&Server::parameter>(), mine[1].rpc_sync<&Server::parameter>()}, options,
      {.name = "shared"});
  for (int step = 0; step < 20; ++step) {
    Context context;
    const int first = trainer % 2;
    Tensor x = batch(trainer, step);
    auto [y, first_weight] = mine[first].rpc_sync<&Server::forward_and_weight>(x);
    random_delay(random);
    auto [z, second_weight] = mine[1 - first].rpc_sync<&Server::forward_and_weight>(y);
    random_delay(random);
    backward(context, {z.sum()}, {.timeout = absl::Seconds(30)});
    Tensor a = first_weight.clone().requires_grad_(), b = second_weight.clone().requires_grad_();
    forward_here(forward_here(x, a), b).sum().backward();
    EXPECT_TRUE(torch::equal(mine[first].rpc_sync<&Server::gradient>(context.id()), a.grad()));
    EXPECT_TRUE(torch::equal(mine[1 - first].rpc_sync<&Server::gradient>(context.id()), b.grad()));
    optimizer.step(context);
  }
}

TEST_F(Trainers, WaitingSgdLeavesEveryGradientUndisturbed) {
  Group group(5);
  run(group, 2, [&](int t, Agent& agent) {
    expect_undisturbed<torch::optim::SGD>(group, t, agent, torch::optim::SGDOptions(0.05));
  });
  forget();
}

TEST_F(Trainers, WaitingAdamLeavesEveryGradientUndisturbed) {
  Group group(4);
  run(group, 2, [&](int t, Agent& agent) {
    expect_undisturbed<torch::optim::Adam>(group, t, agent, torch::optim::AdamOptions(0.05));
  });
  forget();
}

TEST_F(Trainers, HogwildNeitherWaitsNorGathers) {
  Group group(3);
  run(group, 1, [&](int t, Agent& agent) {
    RRef<Server> server = agent.rpc_sync<&server_here>("worker0", torch::ones({6}));
    DistributedOptimizer<torch::optim::SGD> optimizer(
        {server.rpc_sync<&Server::parameter>()}, torch::optim::SGDOptions(0.01),
        {.consistency = Consistency::kHogwild, .name = "hogwild"});
    for (int step = 0; step < 10; ++step) {
      Context context;
      backward(context, {server.rpc_sync<&Server::forward>(batch(t, step)).sum()});
      // A forward without its backward delays no step.
      Tensor unused = server.rpc_sync<&Server::forward>(batch(t, step));
      optimizer.step(context);
    }
  });
  forget();
}

TEST_F(Trainers, StepThatWaitsForABackwardEndsAtItsDeadline) {
  Group group(3);
  AgentGuard guard(group[1]);
  {
    RRef<Server> server = group[1]->rpc_sync<&server_here>("worker0", torch::ones({6}));
    DistributedOptimizer<torch::optim::SGD> optimizer({server.rpc_sync<&Server::parameter>()},
                                                      torch::optim::SGDOptions(0.01),
                                                      {.timeout = absl::Seconds(10)});
    std::thread other([&] {
      AgentGuard other_guard(group[2]);
      Context forward_only;
      RRef<Server> mine = group[2]->rpc_sync<&server_here>("worker0", torch::ones({6}));
      (void)mine.rpc_sync<&Server::forward>(batch(0, 0));
      {
        ScopedExecutionState clean;
        AgentGuard step_guard(group[1]);
        Context context;
        backward(context, {server.rpc_sync<&Server::forward>(batch(1, 0)).sum()});
        EXPECT_EQ(status_of([&] { optimizer.step(context); }).code(), absl::StatusCode::kDeadlineExceeded);
      }
    });
    other.join();
    // The context that the step waited for has been destroyed.
    Context context;
    backward(context, {server.rpc_sync<&Server::forward>(batch(1, 0)).sum()});
    optimizer.step(context);
  }
  forget();
}

// The owner's error, which has the reason, arrives before the caller's own timer expires, which has no
// reason. It is sent a twentieth of this time earlier.
constexpr absl::Duration kReasonTimeout = absl::Seconds(20);

// Returns the error of a step that ends before that timer. If the machine stalls at that moment, the timer
// may be first; the step is then repeated.
absl::Status reason_of(const std::function<void()>& step) {
  absl::Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const absl::Time begin = absl::Now();
    status = status_of(step);
    if (absl::Now() - begin < kReasonTimeout) break;
  }
  return status;
}

TEST_F(Trainers, StepThatTimesOutNamesTheTrainersAndWhatToDo) {
  Group group(3);
  {
    AgentGuard other_guard(group[2]);
    Context forward_only;
    RRef<Server> theirs = group[2]->rpc_sync<&server_here>("worker0", torch::ones({6}));
    (void)theirs.rpc_sync<&Server::forward>(batch(0, 0));
    // That forward ran before the optimizer existed, which arms the barrier.
    ScopedExecutionState clean;
    AgentGuard guard(group[1]);
    RRef<Server> server = group[1]->rpc_sync<&server_here>("worker0", torch::ones({6}));
    DistributedOptimizer<torch::optim::SGD> optimizer({server.rpc_sync<&Server::parameter>()},
                                                      torch::optim::SGDOptions(0.01),
                                                      {.name = "shared", .timeout = kReasonTimeout});
    const absl::Status status = reason_of([&] {
      Context context;
      backward(context, {server.rpc_sync<&Server::forward>(batch(1, 0)).sum()});
      optimizer.step(context);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("timed out while it waited for the backward"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("of trainer \"worker2\""));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("with DistributedDataParallel use Consistency::kSync"));
  }
  forget();
}

TEST_F(Trainers, SyncStepWithoutTheOthersNamesThem) {
  Group group(3);
  {
    AgentGuard guard(group[1]);
    RRef<Server> server = group[1]->rpc_sync<&server_here>("worker0", torch::ones({6}));
    const DistributedOptimizerOptions settings{
        .consistency = Consistency::kSync, .trainers = 3, .name = "triple", .timeout = kReasonTimeout};
    DistributedOptimizer<torch::optim::SGD> optimizer({server.rpc_sync<&Server::parameter>()},
                                                      torch::optim::SGDOptions(0.01), settings);
    {
      AgentGuard other_guard(group[2]);
      RRef<Server> theirs = group[2]->rpc_sync<&server_here>("worker0", torch::ones({6}));
      DistributedOptimizer<torch::optim::SGD> other({theirs.rpc_sync<&Server::parameter>()},
                                                    torch::optim::SGDOptions(0.01), settings);
    }
    const absl::Status status = reason_of([&] {
      Context context;
      optimizer.step(context);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("got gradients from \"worker1\", not from \"worker2\""));
    EXPECT_THAT(std::string(status.message()), HasSubstr("1 of the trainers has made no optimizer"));
  }
  forget();
}

TEST_F(Trainers, SyncStepWithoutTheOtherEndsAtItsDeadline) {
  Group group(2);
  AgentGuard guard(group[1]);
  {
    RRef<Server> server = group[1]->rpc_sync<&server_here>("worker0", torch::ones({6}));
    DistributedOptimizer<torch::optim::SGD> optimizer(
        {server.rpc_sync<&Server::parameter>()}, torch::optim::SGDOptions(0.01),
        {.consistency = Consistency::kSync, .trainers = 2, .name = "lonely", .timeout = absl::Seconds(2)});
    Context context;
    EXPECT_EQ(status_of([&] { optimizer.step(context); }).code(), absl::StatusCode::kDeadlineExceeded);
  }
  forget();
}

TEST_F(Trainers, SyncStepEndsWhenTheOtherTrainerDies) {
  Group group(3);
  {
    AgentGuard guard(group[1]);
    RRef<Server> server = group[1]->rpc_sync<&server_here>("worker0", torch::ones({6}));
    const DistributedOptimizerOptions settings{
        .consistency = Consistency::kSync, .trainers = 2, .name = "pair"};
    DistributedOptimizer<torch::optim::SGD> optimizer({server.rpc_sync<&Server::parameter>()},
                                                      torch::optim::SGDOptions(0.01), settings);
    {
      AgentGuard other_guard(group[2]);
      RRef<Server> theirs = group[2]->rpc_sync<&server_here>("worker0", torch::ones({6}));
      DistributedOptimizer<torch::optim::SGD> other({theirs.rpc_sync<&Server::parameter>()},
                                                    torch::optim::SGDOptions(0.01), settings);
    }
    std::thread death([&] { group.kill(2); });
    Context context;
    const absl::Status status = status_of([&] { optimizer.step(context); });
    death.join();
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker2"));
  }
  forget();
}

TEST(DistributedOptimizer, SharedNameWithOtherSettingsIsRefused) {
  Group group(2);
  AgentGuard guard(group[0]);
  RRef<Server> server = group[0]->remote<Server>("worker1", torch::ones({2}));
  RRef<Server> another = group[0]->remote<Server>("worker1", torch::ones({2}));
  auto make = [&](const RRef<Server>& of, Consistency consistency) {
    return status_of([&] {
             DistributedOptimizer<torch::optim::SGD> made({of.rpc_sync<&Server::parameter>()},
                                                          torch::optim::SGDOptions(0.1),
                                                          {.consistency = consistency, .name = "name"});
           })
        .code();
  };
  DistributedOptimizer<torch::optim::SGD> first({server.rpc_sync<&Server::parameter>()},
                                                torch::optim::SGDOptions(0.1), {.name = "name"});
  EXPECT_EQ(make(server, Consistency::kWait), absl::StatusCode::kOk);
  EXPECT_EQ(make(server, Consistency::kHogwild), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(make(another, Consistency::kWait), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::autograd
