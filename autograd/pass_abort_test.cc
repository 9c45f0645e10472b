#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "autograd/autograd.h"
#include "autograd/services.h"
#include "autograd/statistics.h"
#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/autograd.pb.h"
#include "rpc/call.h"
#include "rpc/tensor_codec.h"
#include "rpc/testing/group.h"

// How a backward pass ends before its time, and that nothing of it stays anywhere.
namespace gradwire::autograd {

using at::Tensor;

// A hook that stands still in the middle of a pass until it is let go.
struct Halt {
  Promise<void> reached;
  Promise<void> let_go;
};
Halt& halt() {
  static auto* const instance = new Halt;
  return *instance;
}

Tensor halting(const Tensor& x) {
  Tensor y = x * 2;
  y.register_hook([halt = halt()](const Tensor&) {
    halt.reached.set_value();
    halt.let_go.future().wait();
  });
  return y;
}
GRADWIRE_RPC(halting)

Tensor pass_on(const Tensor& x, const std::string& to) { return rpc::rpc_sync<&halting>(to, x) + 1; }
GRADWIRE_RPC(pass_on)

// A whole step in a handler, and how it ended.
Promise<absl::StatusCode>& step_end() {
  static auto* const promise = new Promise<absl::StatusCode>;
  return *promise;
}
void step(const std::string& to) {
  absl::Status status;
  try {
    Context context;
    Tensor x = at::ones({2}).set_requires_grad(true);
    backward(context, {rpc::rpc_sync<&halting>(to, x).sum()});
  } catch (const Error& error) {
    status = error.status();
  }
  step_end().set_value(status.code());
}
GRADWIRE_RPC(step)

Tensor refuse(const Tensor& x) { throw std::runtime_error("this handler has had enough"); }
GRADWIRE_RPC(refuse)
Tensor twice(const Tensor& x) { return x * 2; }
GRADWIRE_RPC(twice)

namespace {

using testing::HasSubstr;

class PassAbort : public testing::Test {
 protected:
  PassAbort() : group_(3) {
    halt() = Halt();
    step_end() = Promise<absl::StatusCode>();
  }
  void expect_nothing_left(std::initializer_list<std::size_t> ranks) {
    for (std::size_t rank : ranks) {
      const absl::Time deadline = absl::Now() + absl::Seconds(30);
      while (absl::Now() < deadline && statistics(*group_[rank]).contexts > 0) std::this_thread::yield();
      EXPECT_EQ(statistics(*group_[rank]).contexts, 0u) << rank;
    }
  }
  rpc::testing::Group group_;
};

absl::Status error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

TEST_F(PassAbort, ReleasingTheContextEndsItsPassEverywhere) {
  absl::Status status;
  auto context = std::make_unique<std::optional<Context>>();
  Promise<Tensor> loss;
  std::thread backward_thread;
  {
    rpc::AgentGuard guard(group_[0]);
    context->emplace();
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[0]->rpc_sync<&pass_on>("worker1", x, "worker2").sum();
    const rpc::Id id = (**context).full_id();
    backward_thread = std::thread([this, y, id, &status] {
      rpc::AgentGuard guard(group_[0]);
      status = error_of([&] { backward(id, {y}); });
    });
    halt().reached.future().wait();
    context->reset();
  }
  backward_thread.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("released"));
  halt().let_go.set_value();
  expect_nothing_left({0, 1, 2});
}

TEST_F(PassAbort, CallerWhoGivesUpEndsThePassThatItsHandlerRuns) {
  rpc::AgentGuard guard(group_[0]);
  Future<void> call = group_[0]->rpc_async<&step>("worker1", "worker2");
  halt().reached.future().wait();
  call.cancel();
  EXPECT_EQ(step_end().future().wait(), absl::StatusCode::kCancelled);
  halt().let_go.set_value();
  expect_nothing_left({0, 1, 2});
}

TEST_F(PassAbort, WorkerTwoHopsAwayThatDiesInTheRunIsNamed) {
  rpc::AgentGuard guard(group_[0]);
  absl::Status status;
  {
    Context context;
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[0]->rpc_sync<&pass_on>("worker1", x, "worker2").sum();
    std::thread killer([this] {
      halt().reached.future().wait();
      // In the middle of its node: shutdown waits for that.
      std::thread release([] { halt().let_go.set_value(); });
      group_.kill(2);
      release.join();
    });
    status = error_of([&] { backward(context, {y}, {.timeout = absl::Seconds(60)}); });
    killer.join();
  }
  // Whether the gradient had left before the end is open.
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(worker_of(status), "worker2") << status;
  }
  expect_nothing_left({0, 1});
}

TEST_F(PassAbort, WorkerLostBeforeThePassIsNamed) {
  rpc::AgentGuard guard(group_[0]);
  {
    Context context;
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[0]->rpc_sync<&pass_on>("worker1", x, "worker2").sum();
    group_.kill(2);
    const absl::Status status = error_of([&] { backward(context, {y}, {.timeout = absl::Seconds(60)}); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(worker_of(status), "worker2") << status;
  }
  expect_nothing_left({0, 1});
}

TEST_F(PassAbort, HandlerThatFailsInTheForwardLeavesTheContextUsable) {
  rpc::AgentGuard guard(group_[0]);
  Context context;
  Tensor x = at::ones({2}).set_requires_grad(true);
  Tensor y = group_[0]->rpc_sync<&twice>("worker1", x);
  EXPECT_EQ(error_of([&] { group_[0]->rpc_sync<&refuse>("worker1", y); }).code(), absl::StatusCode::kUnknown);
  backward(context, {group_[0]->rpc_sync<&twice>("worker2", y).sum()});
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 4.0)));
}

TEST_F(PassAbort, MessageOfAReleasedContextIsDroppedAndCounted) {
  rpc::AgentGuard guard(group_[0]);
  proto::Mark mark;
  {
    Context context;
    Tensor x = at::ones({2}).set_requires_grad(true);
    backward(context, {group_[0]->rpc_sync<&twice>("worker1", x).sum()});
    rpc::to_proto(context.full_id(), *mark.mutable_pass()->mutable_context());
    rpc::to_proto(rpc::Id{context.full_id().origin, 1'000'000}, *mark.mutable_pass()->mutable_pass());
  }
  expect_nothing_left({0, 1});
  EXPECT_EQ(statistics(*group_[1]).late_messages, 0u);
  const auto reply = group_[0]->call_service(group_[1]->self(), kMarkService, mark.SerializeAsString(),
                                             nullptr, {.deadline = absl::Now() + absl::Seconds(30)});
  EXPECT_EQ(reply.result().status().code(), absl::StatusCode::kNotFound) << reply.result().status();
  EXPECT_EQ(statistics(*group_[1]).late_messages, 1u);
  EXPECT_EQ(statistics(*group_[1]).contexts, 0u);
}

}  // namespace
}  // namespace gradwire::autograd
