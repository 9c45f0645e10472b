#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/empty_for.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

// Large tensors of calls that are sent again: each repetition sends the same values as the first attempt.
namespace gradwire::rpc {
namespace {

using transport::Fault;

std::atomic<int>& runs() {
  static auto* count = new std::atomic<int>(0);
  return *count;
}
// Changes its argument. The callee owns that tensor.
at::Tensor add_one(at::Tensor x) {
  runs().fetch_add(1);
  return x.add_(1);
}
GRADWIRE_RPC_IDEMPOTENT(add_one)

class RetryTensors : public ::testing::TestWithParam<const char*> {
 protected:
  // Options of agents whose connection breaks at the first two requests with a tensor, or at the first two
  // answers with one.
  static RpcBackendOptions losing(bool answers) {
    RpcBackendOptions options;
    options.transports = {GetParam()};
    auto left = std::make_shared<std::atomic<int>>(2);
    options.hooks = testing::outgoing_faults([left, answers](const proto::Envelope& envelope) {
      const int tensors = answers ? envelope.response().result().tensors_size()
                                  : envelope.request().arguments().tensors_size();
      return tensors > 0 && left->fetch_sub(1) > 0 ? Fault::Kind::kCut : Fault::Kind::kDeliver;
    });
    return options;
  }
  static at::Tensor ones() { return at::ones({1 << 18}); }
  static bool all_twos(const at::Tensor& x) { return at::equal(x, 2 * ones()); }
};
INSTANTIATE_TEST_SUITE_P(Transports, RetryTensors, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RetryTensors, ArgumentsChangedAfterTheCallAreSentUnchanged) {
  testing::Group group(2, losing(/*answers=*/false));
  runs() = 0;
  at::Tensor mine = ones();
  Future<at::Tensor> later = group[0]->rpc_async<&add_one>("worker1", mine);
  mine.fill_(100);
  EXPECT_TRUE(all_twos(later.wait()));
  EXPECT_EQ(runs(), 1);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 2u);
  EXPECT_TRUE(all_twos(group[0]->rpc_sync<&add_one>("worker1", ones())));
  EXPECT_TRUE(all_twos(group[0]->rpc_async<&add_one>("worker1", ones()).wait()));
  group.expect_empty();
}

TEST_P(RetryTensors, MovedInMemoryIsKeptForRepetitions) {
  testing::Group group(2, losing(/*answers=*/false));
  AgentGuard guard(group[0]);
  runs() = 0;
  at::Tensor given = empty_for("worker1", {1 << 18}, at::kFloat);
  given.fill_(1);
  EXPECT_TRUE(all_twos(group[0]->rpc_async<&add_one>("worker1", std::move(given)).wait()));
  EXPECT_EQ(runs(), 1);
  group.expect_empty();
}

TEST_P(RetryTensors, RepeatedAnswersHaveTheSameResult) {
  testing::Group group(2, losing(/*answers=*/true));
  runs() = 0;
  EXPECT_TRUE(all_twos(group[0]->rpc_sync<&add_one>("worker1", ones())));
  EXPECT_EQ(runs(), 1);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 2u);
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
