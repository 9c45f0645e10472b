#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/statistics.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/policy/policy_text.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"

// A policy and the callees that need libtorch: operators, TorchScript, and calls in autograd contexts.
namespace gradwire::rpc {
namespace {

using autograd::backward;
using autograd::Context;
using autograd::get_gradients;
using ::testing::HasSubstr;
using testing::PolicyText;

at::Tensor square(const at::Tensor& x) { return x * x; }
GRADWIRE_RPC(square)

RpcBackendOptions with(const PolicyText& text) {
  RpcBackendOptions options;
  options.security.policy_file = text.path();
  return options;
}

void expect_denied(const absl::Status& status, absl::string_view text) {
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(PolicyTorch, OperatorsNeedARule) {
  const PolicyText text("allow a operator aten::*\ndeny a operator aten::mul\nallow a reference hold\n");
  testing::Group group({"a", "b"}, with(text));
  const AgentGuard guard(group[0]);
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("b", Op("aten::add"), x, x), 2 * x));
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("b", Op("aten::add.Tensor"), x, x), 2 * x));
  for (const char* name : {"aten::mul", "aten::mul.Tensor"}) {
    expect_denied(status_of([&] { rpc_sync<at::Tensor>("b", Op(name), x, x); }), "line 2 of ");
  }
  // The rules add to the list of allowed operators, and do not replace it.
  expect_denied(status_of([&] { rpc_sync<at::Tensor>("b", Op("aten::from_file"), "/etc/passwd"); }),
                "not on the list of operators");
  {
    // An operator on a reference would read the value.
    const RRef<at::Tensor> there = remote<at::Tensor>("b", Op("aten::add"), x, x);
    expect_denied(status_of([&] { there.rpc_sync<at::Tensor>(Op("aten::add"), x); }), "fetch the values");
  }
  group.expect_empty();
}

TEST(PolicyTorch, ScriptsNeedARule) {
  const auto unit = register_script("policy", R"(
def twice(x: Tensor) -> Tensor:
  return x * 2

def thrice(x: Tensor) -> Tensor:
  return x * 3
)");
  const PolicyText text("allow a script policy.tw*\n");
  testing::Group group({"a", "b"}, with(text));
  const AgentGuard guard(group[0]);
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(at::equal(rpc_sync<at::Tensor>("b", Script("policy.twice"), x), 2 * x));
  expect_denied(status_of([&] { rpc_sync<at::Tensor>("b", Script("policy.thrice"), x); }),
                "call the script \"policy.thrice\"");
}

// The contexts of both workers end: the Group finds cleanups that are left.
TEST(PolicyTorch, AutogradNeedsARule) {
  PolicyText text("allow * function *::square\nallow b service autograd\n");
  testing::Group group({"a", "b"}, with(text));
  const AgentGuard guard(group[0]);
  const at::Tensor x = at::ones({2}).requires_grad_();
  {
    Context context;
    expect_denied(status_of([&] { rpc_sync<&square>("b", x); }), "use the service \"autograd\"");
    EXPECT_EQ(autograd::statistics(*group[1]).contexts, 0u);
  }
  // Outside of contexts the function may be called.
  EXPECT_TRUE(at::equal(rpc_sync<&square>("b", at::ones({2})), at::ones({2})));
}

// Otherwise a changed policy would keep the contexts, with their tensors, until their origin leaves.
TEST(PolicyTorch, AContextEndsAfterTheRulesHaveChanged) {
  PolicyText text("allow * function *::square\nallow * service autograd\n");
  testing::Group group({"a", "b"}, with(text));
  const AgentGuard guard(group[0]);
  const at::Tensor x = at::ones({2}).requires_grad_();
  {
    Context context;
    rpc_sync<&square>("b", x);
    EXPECT_EQ(autograd::statistics(*group[1]).contexts, 1u);
    text.replace("allow * function *::square\n");
    // The file is checked once a second, when a call arrives.
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (status_of([&] { rpc_sync<&square>("b", x); }).ok()) ASSERT_LT(absl::Now(), deadline);
  }
  eventually([&] { return autograd::statistics(*group[1]).contexts == 0; }, absl::Seconds(30));
  EXPECT_EQ(autograd::statistics(*group[1]).contexts, 0u);
}

TEST(PolicyTorch, ABackwardPassNeedsTheServiceInBothDirections) {
  const PolicyText text("allow * function *::square\nallow * service autograd\n");
  testing::Group group({"a", "b"}, with(text));
  const AgentGuard guard(group[0]);
  const at::Tensor x = at::full({2}, 3.0).requires_grad_();
  Context context;
  const at::Tensor loss = rpc_sync<&square>("b", x).sum();
  backward(context, {loss});
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 6.0)));
}

}  // namespace
}  // namespace gradwire::rpc
