#include "gradwire/rpc/remote_module.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/stock_modules.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

class RemoteModules : public ::testing::Test {
 protected:
  ~RemoteModules() override { group_.expect_empty(); }
  testing::Group group_{3};
};

TEST_F(RemoteModules, ForwardEqualsALocalModule) {
  AgentGuard guard(group_[0]);
  RemoteModule<torch::nn::LinearImpl> remote("worker1/cpu", 5, 3);
  torch::nn::LinearImpl local(5, 3);
  const std::map<std::string, at::Tensor> state = state_dict(local);
  remote.load_state_dict(state);
  const at::Tensor x = at::rand({4, 5});
  EXPECT_TRUE(at::equal(remote.forward(x).detach(), local.forward(x).detach()));
  EXPECT_TRUE(at::equal(remote.forward_async(x).wait().detach(), local.forward(x).detach()));
  EXPECT_TRUE(at::equal(remote.state_dict().at("weight"), state.at("weight")));
}

TEST_F(RemoteModules, ParametersAreReferencesOfTheOwner) {
  AgentGuard guard(group_[0]);
  RemoteModule<torch::nn::LinearImpl> remote("worker1", 5, 3);
  const std::vector<RRef<at::Tensor>> parameters = remote.remote_parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].owner_name(), "worker1");
  EXPECT_TRUE(at::equal(parameters[0].to_here().detach(), remote.state_dict().at("weight")));
}

TEST_F(RemoteModules, TrainAndEvalReachTheModule) {
  AgentGuard guard(group_[0]);
  RemoteModule<torch::nn::DropoutImpl> dropout("worker1", 0.5);
  const at::Tensor x = at::ones({1000});
  dropout.eval();
  EXPECT_TRUE(at::equal(dropout.forward(x), x));
  dropout.train();
  EXPECT_FALSE(at::equal(dropout.forward(x), x));
}

TEST_F(RemoteModules, MismatchedStateIsNamedAndNotLoaded) {
  AgentGuard guard(group_[0]);
  RemoteModule<torch::nn::LinearImpl> remote("worker1", 5, 3);
  const at::Tensor before = remote.state_dict().at("weight");
  try {
    remote.load_state_dict({{"weight", at::zeros({3, 4})}, {"slope", at::zeros({1})}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(absl::IsInvalidArgument(error.status()));
    EXPECT_THAT(error.what(), HasSubstr("weight has shape [3, 4] instead of [3, 5]"));
    EXPECT_THAT(error.what(), HasSubstr("bias is missing"));
    EXPECT_THAT(error.what(), HasSubstr("no slope"));
  }
  EXPECT_TRUE(at::equal(remote.state_dict().at("weight"), before));
}

TEST_F(RemoteModules, DevicesThatTheWorkerDoesNotHaveAreRefused) {
  AgentGuard guard(group_[0]);
  for (const char* location : {"worker1/lag:0", "worker1/", "worker1/no device", "/cpu"}) {
    try {
      RemoteModule<torch::nn::LinearImpl> remote(location, 5, 3);
      FAIL() << location;
    } catch (const Error& error) {
      EXPECT_TRUE(absl::IsInvalidArgument(error.status())) << location;
      EXPECT_THAT(error.what(), HasSubstr(location == std::string("worker1/lag:0") ? "lag:0" : location));
    }
  }
}

at::Tensor value_of(const RRef<at::Tensor>& reference) { return reference.to_here().detach(); }
GRADWIRE_RPC(value_of)
using Linear = RemoteModule<torch::nn::LinearImpl>;
at::Tensor forward_through(const Linear& module, const at::Tensor& x) { return module.forward(x); }
GRADWIRE_RPC(forward_through)
std::vector<Linear> pass_on(const Linear& module) { return {module, module}; }
GRADWIRE_RPC(pass_on)

TEST_F(RemoteModules, TravelAsArgumentsAndResults) {
  AgentGuard guard(group_[0]);
  const at::Tensor x = at::rand({4, 5});
  const Linear remote("worker1", 5, 3);
  const at::Tensor y = remote.forward(x);
  // To a third worker, to its owner, and to the worker itself.
  for (const char* worker : {"worker2", "worker1", "worker0"}) {
    EXPECT_TRUE(at::equal(rpc_sync<&forward_through>(worker, remote, x).detach(), y.detach())) << worker;
  }
  const std::vector<Linear> back = rpc_sync<&pass_on>("worker2", remote);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_TRUE(at::equal(back[1].forward(x).detach(), y.detach()));
  EXPECT_EQ(back[1].get_module_rref().owner_name(), "worker1");
}

TEST_F(RemoteModules, ForwardRemoteLeavesTheResult) {
  AgentGuard guard(group_[0]);
  const at::Tensor x = at::rand({4, 5});
  const Linear remote("worker1", 5, 3);
  const RRef<at::Tensor> y = remote.forward_remote(x);
  EXPECT_EQ(y.owner_name(), "worker1");
  EXPECT_TRUE(at::equal(y.to_here().detach(), remote.forward(x).detach()));
}

TEST_F(RemoteModules, TheWorkerMayBeARank) {
  AgentGuard guard(group_[0]);
  EXPECT_EQ(Linear("rank:2/cpu", 5, 3).get_module_rref().owner_name(), "worker2");
  EXPECT_EQ(Linear("rank:1", 5, 3).get_module_rref().owner_name(), "worker1");
  for (const char* location : {"rank:7", "rank:-1", "rank:x", "rank:"}) {
    EXPECT_TRUE(absl::IsNotFound(status_of([&] { Linear(location, 5, 3); }))) << location;
  }
}

TEST_F(RemoteModules, ParametersOfALocalModuleBecomeReferences) {
  AgentGuard guard(group_[0]);
  torch::nn::LinearImpl local(5, 3);
  const std::vector<RRef<at::Tensor>> parameters = parameter_rrefs(local);
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_TRUE(parameters[0].is_owner());
  EXPECT_TRUE(parameters[0].local_value().is_same(local.weight));
  EXPECT_TRUE(at::equal(rpc_sync<&value_of>("worker1", parameters[1]), local.bias.detach()));
}

TEST_F(RemoteModules, StateOfALocalModule) {
  torch::nn::LinearImpl a(5, 3);
  torch::nn::LinearImpl b(5, 3);
  load_state_dict(b, state_dict(a));
  EXPECT_TRUE(at::equal(a.weight.detach(), b.weight.detach()));
  EXPECT_TRUE(absl::IsInvalidArgument(status_of([&] { load_state_dict(b, {}); })));
}

TEST_F(RemoteModules, AModuleOfTheProgramBecomesARemoteModule) {
  AgentGuard guard(group_[0]);
  const auto local = std::make_shared<torch::nn::LinearImpl>(5, 3);
  const at::Tensor x = at::rand({4, 5});
  const Linear shared{RRef<torch::nn::LinearImpl>(local)};
  EXPECT_TRUE(
      at::equal(rpc_sync<&forward_through>("worker1", shared, x).detach(), local->forward(x).detach()));
}

class Unregistered : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST_F(RemoteModules, AClassThatIsNotRegisteredIsNamed) {
  AgentGuard guard(group_[0]);
  const RemoteModule<Unregistered> remote{RRef<Unregistered>(std::make_shared<Unregistered>())};
  const std::map<std::string, std::function<void()>> operations = {
      {"parameters", [&] { remote.remote_parameters(); }},
      {"train", [&] { remote.train(); }},
      {"state_dict", [&] { remote.state_dict(); }},
      {"load_state_dict", [&] { remote.load_state_dict({}); }},
  };
  for (const auto& [name, operation] : operations) {
    const absl::Status status = status_of(operation);
    EXPECT_TRUE(absl::IsNotFound(status)) << name;
    EXPECT_THAT(status.message(), HasSubstr("Unregistered")) << name;
    EXPECT_THAT(status.message(), HasSubstr("GRADWIRE_RPC_MODULE")) << name;
  }
}

// Calls each operation of the class M for the value of `reference`. Returns the statuses by the names of the
// operations.
template <class M>
std::map<std::string, absl::Status> use_as(const std::shared_ptr<RRefHandle>& reference) {
  using module_internal::ModuleCall;
  const module_internal::ModuleCallees& callees = module_internal::callees_of_module<M>;
  const module_internal::ModuleReference module(reference);
  const auto call = [&]<class R, auto F>(std::type_identity<R>, ModuleCall<F> callee,
                                         const auto&... arguments) {
    return status_of([&] {
      Agent::current()->template rpc_sync<R>(reference->owner().name, callee, module, arguments...);
    });
  };
  using Parameters = std::vector<RRef<at::Tensor>>;
  using State = std::map<std::string, at::Tensor>;
  const std::type_identity<void> nothing;
  const std::string type = cpp_type_name<M>();
  using namespace module_internal;
  return {
      {"parameters",
       call(std::type_identity<Parameters>(), ModuleCall<&parameters_of>{callees.parameters, type}, true)},
      {"train", call(nothing, ModuleCall<&module_internal::train>{callees.train, type}, true)},
      {"state_dict", call(std::type_identity<State>(), ModuleCall<&state_of>{callees.state, type})},
      {"load_state_dict", call(nothing, ModuleCall<&load_state>{callees.load_state, type}, State())},
      {"to", call(nothing, ModuleCall<&move_to>{callees.move_to, type}, std::string("cpu"))},
      {"forward",
       call(std::type_identity<at::Tensor>(), ModuleCall<&ForwardOn<M>::call>{callees.forward, type},
            std::string("cpu"), at::ones({5}))},
  };
}

TEST_F(RemoteModules, AReferenceToAnotherClassIsRefused) {
  AgentGuard guard(group_[0]);
  const Linear linear("worker1", 5, 3);
  const RRef<at::Tensor> tensor = linear.remote_parameters()[0];
  for (const auto& reference : {linear.get_module_rref().handle(), tensor.handle()}) {
    for (const auto& [name, status] : use_as<torch::nn::DropoutImpl>(reference)) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << ": " << status;
      EXPECT_THAT(status.message(), HasSubstr("DropoutImpl")) << name;
      EXPECT_THAT(status.message(), HasSubstr(reference->type())) << name;
    }
  }
  for (const auto& [name, status] : use_as<torch::nn::LinearImpl>(linear.get_module_rref().handle())) {
    EXPECT_TRUE(status.ok() || name == "load_state_dict") << name << ": " << status;
  }
}

// A reference from another process may have a false type.
TEST_F(RemoteModules, TheTypeOfTheValueCounts) {
  AgentGuard guard(group_[0]);
  static std::string name;
  name = cpp_type_name<torch::nn::DropoutImpl>();
  TypeOps ops = *type_ops<torch::nn::LinearImpl>();
  ops.name = [] { return name; };
  const std::shared_ptr<RRefHandle> reference =
      rref_internal::own(*group_[0], std::make_shared<torch::nn::LinearImpl>(5, 3), &ops);
  name = cpp_type_name<torch::nn::LinearImpl>();
  for (const auto& [operation, status] : use_as<torch::nn::DropoutImpl>(reference)) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << operation << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr("LinearImpl")) << operation;
  }
}

}  // namespace
}  // namespace gradwire::rpc
