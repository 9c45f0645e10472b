#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/mesh.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

// Tensors in calls to meshes.
namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;

double total(const at::Tensor& x) { return x.sum().item<double>(); }
GRADWIRE_RPC(total)
double total_again(const at::Tensor& x) { return x.sum().item<double>(); }
GRADWIRE_RPC_IDEMPOTENT(total_again)
std::vector<double> parts(const std::vector<at::Tensor>& all) {
  std::vector<double> sums;
  for (const at::Tensor& x : all) sums.push_back(total(x));
  return sums;
}
GRADWIRE_RPC(parts)
at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)

Promise<void>& go() {
  static auto* instance = new Promise<void>;
  return *instance;
}
Future<double> overwrite_later(at::Tensor x) {
  return go().future().then([x] {
    const double before = total(x);
    at::Tensor(x).fill_(-1);
    return before;
  });
}
GRADWIRE_RPC(overwrite_later)
double fill_and_sum(at::Tensor x) {
  const double before = total(x);
  x.fill_(-1);
  return before;
}
GRADWIRE_RPC(fill_and_sum)
double own_sum(const RRef<at::Tensor>& x) { return total(x.local_value()); }
GRADWIRE_RPC(own_sum)
void fill_own(const RRef<at::Tensor>& x, double with) { x.local_value().fill_(with); }
GRADWIRE_RPC(fill_own)

// Parameterised by the transport.
class MeshTensor : public ::testing::TestWithParam<const char*> {
 protected:
  static RpcBackendOptions options() {
    RpcBackendOptions options;
    options.transports = {GetParam()};
    return options;
  }
  ~MeshTensor() override { group_.expect_empty(); }

  testing::Group group_{4, options()};
  AgentGuard guard_{group_[0]};
  const Mesh mesh_ = Mesh::all();
};

INSTANTIATE_TEST_SUITE_P(Transports, MeshTensor, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(MeshTensor, TensorsOfAnySizeReachAllMembers) {
  // In the envelope, in the ring, and in a block of the arena.
  for (const int64_t size : {1, 100, 1'000, 1'000'000}) {
    EXPECT_THAT(mesh_.call<&total>(at::ones({size})).values(), ElementsAre(size, size, size, size));
    EXPECT_THAT(mesh_.call_async<&total>(at::ones({size})).wait().values(),
                ElementsAre(size, size, size, size));
    at::Tensor moved = at::ones({size});
    EXPECT_THAT(mesh_.call<&total>(std::move(moved)).values(), ElementsAre(size, size, size, size));
  }
  EXPECT_THAT(mesh_.call<&parts>(std::vector<at::Tensor>{at::ones({3}), at::ones({100'000})}).values()[2],
              ElementsAre(3, 100'000));
  for (const at::Tensor& x : mesh_.call<&scale>(at::ones({100'000}), 3.0).values())
    EXPECT_EQ(total(x), 300'000);
  EXPECT_THAT(mesh_.call<&total_again>(at::ones({100'000})).values(),
              ElementsAre(100'000, 100'000, 100'000, 100'000));
}

TEST_P(MeshTensor, EachMemberOwnsWhatItGets) {
  const at::Tensor x = at::ones({1'000'000});
  EXPECT_THAT(mesh_.call<&fill_and_sum>(x).values(), ElementsAre(1e6, 1e6, 1e6, 1e6));
  EXPECT_EQ(total(x), 1e6);
  // Given away, but to several: none of them gets the memory itself.
  at::Tensor given = at::ones({1'000'000});
  EXPECT_THAT(mesh_.call_async<&fill_and_sum>(std::move(given)).wait().values(),
              ElementsAre(1e6, 1e6, 1e6, 1e6));
}

TEST_P(MeshTensor, CallerMayChangeTheTensorWhenCallAsyncHasReturned) {
  go() = Promise<void>();
  at::Tensor x = at::ones({4'000'000});
  Future<MeshResult<double>> later = mesh_.call_async<&overwrite_later>(x);
  x.fill_(5);
  Future<double> first = mesh_.any_async<&overwrite_later>(x);
  x.fill_(7);
  go().set_value();
  EXPECT_THAT(later.wait().values(), ElementsAre(4e6, 4e6, 4e6, 4e6));
  EXPECT_EQ(first.wait(), 20e6);
}

TEST_P(MeshTensor, BroadcastGivesEachMemberItsOwnTensor) {
  const at::Tensor x = at::ones({1'000'000});
  const MeshRRef<at::Tensor> copies = mesh_.broadcast(x);
  EXPECT_THAT(mesh_.call<&own_sum>(copies).values(), ElementsAre(1e6, 1e6, 1e6, 1e6));
  mesh_.slice("member", 1, 2).call<&fill_own>(copies.slice("member", 1, 2), 2.0).values();
  EXPECT_THAT(mesh_.call<&own_sum>(copies).values(), ElementsAre(1e6, 2e6, 1e6, 1e6));
  EXPECT_EQ(total(x), 1e6);
  const at::Tensor leaf = at::ones({3}).requires_grad_();
  EXPECT_TRUE(mesh_.broadcast(leaf)[2].to_here().requires_grad());
}

// The first requests are lost with their connections, and the requests share their buffers.
TEST_P(MeshTensor, LostRequestsOfIdempotentCallsAreSentAgain) {
  RpcBackendOptions options = MeshTensor::options();
  const auto left = std::make_shared<std::atomic<int>>(2);
  options.hooks = testing::outgoing_faults([left](const proto::Envelope& envelope) {
    const bool cut =
        absl::StrContains(envelope.request().function(), "total_again") && left->fetch_sub(1) > 0;
    return cut ? transport::Fault::Kind::kCut : transport::Fault::Kind::kDeliver;
  });
  testing::Group group(3, options);
  const AgentGuard guard(group[0]);
  at::Tensor x = at::ones({100'000});
  Future<MeshResult<double>> later = Mesh::all().call_async<&total_again>(x);
  x.fill_(7);
  EXPECT_THAT(later.wait().values(), ElementsAre(1e5, 1e5, 1e5));
  EXPECT_EQ(group[0]->statistics().calls_repeated, 2u);
  group.expect_empty();
}

TEST_P(MeshTensor, TensorThatCannotBeSentFailsForAllMembers) {
  const MeshResult<double> result = mesh_.call<&total>(at::Tensor(at::ones({3}, at::device(at::kMeta))));
  EXPECT_EQ(result.failed().size(), 4u);
  EXPECT_TRUE(absl::IsInvalidArgument(result.status()));
}

}  // namespace
}  // namespace gradwire::rpc
