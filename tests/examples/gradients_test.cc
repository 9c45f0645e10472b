#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "examples/data/dataset.h"
#include "examples/parameter_server/network.h"
#include "examples/remote_pipeline/shards.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/testing/group.h"

// One step of each example. After a distributed backward pass, the gradients at the owners of the parameters
// equal, bit for bit, the gradients of the same model and batch in one process.
namespace gradwire::examples {
namespace {

constexpr int64_t kHidden = 128;
constexpr int64_t kChannels = 8;

// Runs on the owner of the module. Returns the gradients of the module's parameters in the context, in the
// order of the parameters.
template <class M>
std::vector<at::Tensor> gradients_of(const rpc::RRef<M>& module, int64_t context) {
  const autograd::Gradients gradients = autograd::get_gradients(context);
  std::vector<at::Tensor> found;
  for (const at::Tensor& parameter : module.local_value().parameters())
    found.push_back(gradients.at(parameter));
  return found;
}
GRADWIRE_RPC_AS("network_gradients", &gradients_of<NetworkImpl>)
GRADWIRE_RPC_AS("first_shard_gradients", &gradients_of<FirstShardImpl>)
GRADWIRE_RPC_AS("second_shard_gradients", &gradients_of<SecondShardImpl>)

Samples first_batch() {
  const Samples train = load_digits().train;
  return {train.images.slice(0, 0, 32), train.labels.slice(0, 0, 32)};
}

template <class M>
void expect_gradients(const rpc::RemoteModule<M>& remote, const M& local, const autograd::Context& context) {
  const rpc::RRef<M> module = remote.get_module_rref();
  const std::vector<at::Tensor> gradients =
      rpc::rpc_sync<&gradients_of<M>>(module.owner(), module, context.id());
  const std::vector<at::Tensor> parameters = local.parameters();
  ASSERT_EQ(gradients.size(), parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[i], parameters[i].grad())) << "parameter " << i;
    EXPECT_GT(gradients[i].abs().sum().template item<double>(), 0.0) << "parameter " << i;
  }
}

TEST(ParameterServer, GradientsOfOneStepEqualOneProcess) {
  rpc::testing::Group group({"ps", "trainer0"});
  const Samples batch = first_batch();
  NetworkImpl local(64, kHidden, 10);
  at::cross_entropy_loss(local.forward(batch.images), batch.labels).backward();
  {
    rpc::AgentGuard on_trainer(group[1]);
    rpc::RemoteModule<NetworkImpl> remote("ps", 64, kHidden, 10);
    remote.load_state_dict(rpc::state_dict(local));
    autograd::Context context;
    autograd::backward(context, {at::cross_entropy_loss(remote.forward(batch.images), batch.labels)});
    expect_gradients(remote, local, context);
  }
  group.expect_empty();
}

// With a batch in two parts, as with two micro-batches: the gradients of a part arrive while others are on
// the way, and are added in the order of one process.
TEST(RemotePipeline, GradientsOfOneStepEqualOneProcess) {
  rpc::testing::Group group({"master", "worker1", "worker2"});
  const Samples batch = first_batch();
  FirstShardImpl local_first(kChannels);
  SecondShardImpl local_second(kChannels, 10);
  {
    rpc::AgentGuard on_master(group[0]);
    const std::vector<at::Tensor> parts = batch.images.chunk(2);
    std::vector<at::Tensor> scores;
    for (const at::Tensor& part : parts) {
      const at::Tensor x = local_first.forward(rpc::RRef<at::Tensor>(part));
      scores.push_back(local_second.forward(rpc::RRef<at::Tensor>(x)));
    }
    at::cross_entropy_loss(at::cat(scores), batch.labels).backward();

    rpc::RemoteModule<FirstShardImpl> first("worker1", kChannels);
    rpc::RemoteModule<SecondShardImpl> second("worker2", kChannels, 10);
    first.load_state_dict(rpc::state_dict(local_first));
    second.load_state_dict(rpc::state_dict(local_second));
    autograd::Context context;
    scores.clear();
    for (const at::Tensor& part : parts) {
      const rpc::RRef<at::Tensor> x(part);
      scores.push_back(second.forward(first.get_module_rref().remote<&FirstShardImpl::forward>(x)));
    }
    autograd::backward(context, {at::cross_entropy_loss(at::cat(scores), batch.labels)});
    expect_gradients(first, local_first, context);
    expect_gradients(second, local_second, context);
  }
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::examples
