#include "gradwire/rpc/remote_module.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/rpc/stock_modules.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

class RemoteModules : public ::testing::Test {
 protected:
  ~RemoteModules() override { group_.expect_empty(); }
  testing::Group group_{2};
};

TEST_F(RemoteModules, ForwardEqualsALocalModule) {
  AgentGuard guard(group_[0]);
  RemoteModule<torch::nn::LinearImpl> remote("worker1/cpu", 5, 3);
  torch::nn::LinearImpl local(5, 3);
  const std::map<std::string, at::Tensor> state = module_internal::read_state(local);
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

}  // namespace
}  // namespace gradwire::rpc
