#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "gradwire/autograd/autograd.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/stock_modules.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

namespace nn = torch::nn;
using autograd::backward;
using autograd::Context;
using autograd::get_gradients;

using Linear = RemoteModule<nn::LinearImpl>;
at::Tensor squared(const Linear& module, const at::Tensor& x) { return module.forward(x).pow(2); }
GRADWIRE_RPC(squared)

std::map<std::string, at::Tensor> gradients_of(const RRef<nn::LinearImpl>& module, int64_t context) {
  const auto gradients = get_gradients(context);
  const nn::LinearImpl& local = module.local_value();
  return {{"weight", gradients.at(local.weight)}, {"bias", gradients.at(local.bias)}};
}
GRADWIRE_RPC(gradients_of)

class RemoteModuleBackward : public ::testing::Test {
 protected:
  ~RemoteModuleBackward() override {
    guard_.reset();
    group_.expect_empty();
  }
  testing::Group group_{3};
  std::optional<AgentGuard> guard_{std::in_place, group_[0]};
};

TEST_F(RemoteModuleBackward, GoesThroughAModuleThatWasSent) {
  nn::LinearImpl local(5, 3);
  const Linear module("worker1", 5, 3);
  module.load_state_dict(state_dict(local));
  const at::Tensor x = at::rand({4, 5}).requires_grad_();

  const at::Tensor expected = local.forward(x).pow(2).sum();
  expected.backward();
  const at::Tensor expected_x = x.grad().clone();
  x.mutable_grad() = at::Tensor();

  // worker2 calls the module, which is on worker1.
  Context context;
  const at::Tensor loss = rpc_sync<&squared>("worker2", module, x).sum();
  EXPECT_TRUE(at::equal(loss.detach(), expected.detach()));
  backward(context, {loss});
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), expected_x));
  const auto there = rpc_sync<&gradients_of>("worker1", module.get_module_rref(), context.id());
  EXPECT_TRUE(at::equal(there.at("weight"), local.weight.grad()));
  EXPECT_TRUE(at::equal(there.at("bias"), local.bias.grad()));
}

TEST_F(RemoteModuleBackward, GoesThroughTheTupleOfAnLstm) {
  nn::LSTMImpl local(4, 6);
  const RemoteModule<nn::LSTMImpl> module("worker1", 4, 6);
  module.load_state_dict(state_dict(local));
  const at::Tensor x = at::rand({5, 2, 4}).requires_grad_();
  const auto [local_output, local_state] = local.forward(x);
  (local_output.sum() + 2 * std::get<1>(local_state).sum()).backward();
  const at::Tensor expected = x.grad().clone();

  Context context;
  const auto [output, state] = module.forward(x);
  backward(context, {output.sum() + 2 * std::get<1>(state).sum()});
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), expected));
}

TEST_F(RemoteModuleBackward, AScriptOnAnotherWorkerIsPartOfTheGraph) {
  register_script("graph",
                  "def cube(x: Tensor) -> Tensor:\n  return x * x * x\n"
                  "def outer(worker: str, x: Tensor) -> Tensor:\n"
                  "  return rpc.rpc_async(worker, cube, (x,)).wait() * 2\n");
  const at::Tensor x = at::full({}, 2.0).requires_grad_();
  Context context;
  const at::Tensor y = rpc_sync<at::Tensor>("worker1", Script("graph.outer"), "worker2", x);
  backward(context, {y});
  EXPECT_EQ(get_gradients(context).at(x).item<double>(), 24);
}

// The names of the nodes of backward passes that ran, on all workers of this process.
class BackwardNodes {
 public:
  BackwardNodes() {
    current() = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& node)
                                                                   -> std::unique_ptr<at::ObserverContext> {
                                      MutexLock lock(current()->mutex_);
                                      current()->names_.insert(node.name());
                                      return nullptr;
                                    }).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~BackwardNodes() { at::removeCallback(handle_); }
  std::set<std::string> names() {
    MutexLock lock(mutex_);
    return names_;
  }

 private:
  static BackwardNodes*& current() {
    static BackwardNodes* observer = nullptr;
    return observer;
  }
  at::CallbackHandle handle_;
  Mutex mutex_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(RemoteModuleBackward, ObserversSeeTheNodesOfAllWorkers) {
  const Linear module("worker1", 5, 3);
  const at::Tensor x = at::rand({4, 5}).requires_grad_();
  BackwardNodes nodes;
  Context context;
  backward(context, {rpc_sync<&squared>("worker2", module, x).sum()});
  for (const char* name : {"SumBackward0", "PowBackward0", "AddmmBackward0"}) {
    EXPECT_THAT(nodes.names(), ::testing::Contains(name));
  }
}

}  // namespace
}  // namespace gradwire::rpc
