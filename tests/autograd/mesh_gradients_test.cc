// Backward passes through calls to meshes.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "gradwire/autograd/autograd.h"
#include "gradwire/rpc/mesh.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"

namespace {

using at::Tensor;
using gradwire::autograd::backward;
using gradwire::autograd::BackwardMode;
using gradwire::autograd::Context;
using gradwire::autograd::get_gradients;
using gradwire::rpc::Agent;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::Mesh;
using gradwire::rpc::MeshResult;
using gradwire::rpc::MeshRRef;
using gradwire::rpc::RRef;
using gradwire::rpc::testing::Group;
using ::testing::ElementsAre;

// A factor that is another one on each worker.
double factor() { return static_cast<double>(1 + Agent::current()->get_worker_info().id); }
Tensor by_factor(const Tensor& x) { return x * factor(); }
GRADWIRE_RPC(by_factor)
Tensor by_factor_unless(const Tensor& x, const std::string& failing) {
  if (Agent::current()->get_worker_info().name == failing) throw std::runtime_error("on purpose");
  return x * factor();
}
GRADWIRE_RPC(by_factor_unless)
Tensor dot(const std::vector<Tensor>& all) { return (all.at(0) * all.at(1)).sum() * factor(); }
GRADWIRE_RPC(dot)
bool needs_grad(const RRef<Tensor>& x) {
  return x.local_value().requires_grad() && x.local_value().is_leaf();
}
GRADWIRE_RPC(needs_grad)

struct Weight {
  explicit Weight(int64_t n) : weight(at::full({n}, factor()).requires_grad_()) {}
  Tensor times(const Tensor& x) { return x * weight; }
  double gradient(int64_t context) { return get_gradients(context).at(weight).sum().item<double>(); }
  Tensor weight;
};
GRADWIRE_RPC_CLASS(Weight, int64_t)
GRADWIRE_RPC_METHOD(Weight, times)
GRADWIRE_RPC_METHOD(Weight, gradient)

class MeshGradients : public ::testing::TestWithParam<BackwardMode> {
 protected:
  ~MeshGradients() override { group_.expect_empty(); }
  static Tensor total(const std::vector<Tensor>& parts) {
    Tensor sum = parts.at(0).sum();
    for (std::size_t i = 1; i < parts.size(); ++i) sum = sum + parts[i].sum();
    return sum;
  }

  Group group_{4};
  AgentGuard guard_{group_[0]};
};

INSTANTIATE_TEST_SUITE_P(Modes, MeshGradients, ::testing::Values(BackwardMode::kSmart, BackwardMode::kFast));

TEST_P(MeshGradients, GradientIsTheSumOverAllMembers) {
  const Mesh mesh = Mesh::all();
  // Inside of the envelope, and in a buffer that all requests share.
  for (const int64_t size : {3, 100'000}) {
    for (const bool later : {false, true}) {
      Context context;
      const Tensor x = at::full({size}, 2.0).requires_grad_();
      const Tensor loss =
          total(later ? mesh.call_async<&by_factor>(x).wait().values() : mesh.call<&by_factor>(x).values());
      EXPECT_DOUBLE_EQ(loss.item<double>(), 2.0 * 10 * size);
      backward(context, {loss}, {.mode = GetParam()});
      // 1 + 2 + 3 + 4
      EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({size}, 10.0)));
    }
  }
}

TEST_P(MeshGradients, OnlyTensorsThatRequireGradGetOne) {
  Context context;
  const Tensor x = at::full({1000}, 2.0).requires_grad_();
  const Tensor constant = at::full({1000}, 3.0);
  const Tensor loss = total(Mesh::all().call<&dot>(std::vector<Tensor>{constant, x}).values());
  backward(context, {loss}, {.mode = GetParam()});
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({1000}, 30.0)));
  EXPECT_EQ(get_gradients(context).size(), 1u);
}

TEST_P(MeshGradients, ParametersOfActorsGetTheirOwnGradients) {
  const MeshRRef<Weight> weights = Mesh::all().remote<Weight>(1000);
  Context context;
  const Tensor x = at::full({1000}, 2.0).requires_grad_();
  backward(context, {total(weights.call<&Weight::times>(x).values())}, {.mode = GetParam()});
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({1000}, 10.0)));
  EXPECT_THAT(weights.call<&Weight::gradient>(context.id()).values(), ElementsAre(2000, 2000, 2000, 2000));
}

TEST_P(MeshGradients, SlicesAfterOneAnother) {
  const Mesh mesh({"worker0", "worker1", "worker2", "worker3"}, {{"host", 2}, {"gpu", 2}});
  Context context;
  const Tensor x = at::full({1000}, 1.0).requires_grad_();
  const std::vector<Tensor> first = mesh.slice("host", 0).call<&by_factor>(x).values();
  const std::vector<Tensor> second = mesh.slice("host", 1).call<&by_factor>(first[0] + first[1]).values();
  backward(context, {total(second)}, {.mode = GetParam()});
  // (1 + 2) * (3 + 4)
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({1000}, 21.0)));
}

class MeshInContext : public MeshGradients {};
INSTANTIATE_TEST_SUITE_P(Smart, MeshInContext, ::testing::Values(BackwardMode::kSmart));

TEST_P(MeshInContext, FailedMemberLeavesTheGradientsOfTheOthers) {
  Context context;
  const Tensor x = at::full({1000}, 1.0).requires_grad_();
  const MeshResult<Tensor> result = Mesh::all().call<&by_factor_unless>(x, "worker2");
  EXPECT_THAT(result.failed(), ElementsAre("worker2"));
  std::vector<Tensor> answers;
  for (const absl::StatusOr<Tensor>& answer : result) {
    if (answer.ok()) answers.push_back(*answer);
  }
  backward(context, {total(answers)}, {.mode = GetParam()});
  // 1 + 2 + 4
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({1000}, 7.0)));
}

TEST_P(MeshInContext, BroadcastIsNotPartOfTheContext) {
  Context context;
  const Tensor x = at::full({1000}, 1.0).requires_grad_();
  const Mesh mesh = Mesh::all();
  EXPECT_THAT(mesh.call<&needs_grad>(mesh.broadcast(x)).values(), ElementsAre(true, true, true, true));
}

}  // namespace
