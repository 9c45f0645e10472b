#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/autograd/statistics.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

// Tests of backward passes that end early, and that no state of them remains on any worker.
namespace gradwire::autograd {

using at::Tensor;

// A hook that blocks in the middle of a pass until the test releases it.
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

// Runs a whole step in a handler and records its result.
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

// An object of the program in a graph.
struct InGraph {
  ~InGraph() {
    if (on_duty()) ++destroyed_on_duty;
    ++destroyed;
  }
  static inline std::atomic<int> destroyed{0};
  static inline std::atomic<int> destroyed_on_duty{0};
};
Tensor with_object(const Tensor& x) {
  Tensor y = x * 2;
  y.register_hook([object = std::make_shared<InGraph>()](const Tensor&) {});
  return y;
}
GRADWIRE_RPC(with_object)
// The same in the graph of a pass that waits for another worker.
Tensor through_object(const Tensor& x, const std::string& to) {
  return rpc::rpc_sync<&halting>(to, with_object(x));
}
GRADWIRE_RPC(through_object)

Tensor refuse(const Tensor& x) { throw std::runtime_error("this handler fails on purpose"); }
GRADWIRE_RPC(refuse)
Tensor twice(const Tensor& x) { return x * 2; }
GRADWIRE_RPC(twice)

namespace {

using ::testing::HasSubstr;

class PassAbort : public ::testing::Test {
 protected:
  PassAbort() : group_(3) {
    halt() = Halt();
    step_end() = Promise<absl::StatusCode>();
  }
  void expect_nothing_left(std::initializer_list<std::size_t> ranks) {
    for (std::size_t rank : ranks) {
      const absl::Time deadline = absl::Now() + absl::Seconds(30);
      while (absl::Now() < deadline && statistics(*group_[rank]).contexts > 0) std::this_thread::yield();
      const AutogradStatistics left = statistics(*group_[rank]);
      EXPECT_EQ(left.contexts, 0u) << rank;
      EXPECT_EQ(left.passes, 0u) << rank;
      // A worker remembers released contexts of other workers, within its limit.
      EXPECT_LE(left.released_contexts, 4u) << rank;
      EXPECT_LE(left.context_origins, group_.size()) << rank;
    }
  }
  void expect_next_context_works() {
    Context context(group_[0]);
    EXPECT_EQ(current_context_id(), context.id());
    Tensor x = at::ones({2}).set_requires_grad(true);
    backward(context, {group_[0]->rpc_sync<&twice>("worker1", x).sum()});
    EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 2.0)));
  }
  rpc::testing::Group group_;
};

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
      status = status_of([&] { backward(id, {y}); });
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

// The frames of the pass have the context in their slots when the hook destroys it, and put it back when they
// end.
TEST_F(PassAbort, ContextDestroyedInAHookOfItsOwnBackwardIsNotCurrentAfterwards) {
  rpc::AgentGuard guard(group_[0]);
  auto context = std::make_unique<Context>(group_[0]);
  const rpc::Id id = context->full_id();
  Tensor x = at::ones({2}).set_requires_grad(true);
  Tensor y = group_[0]->rpc_sync<&twice>("worker1", x);
  Tensor z = y * 2;
  z.register_hook([&context](const Tensor&) { context.reset(); });
  const absl::Status status = status_of([&] { backward(id, {z.sum()}); });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(current_context_id(), std::nullopt);
  expect_next_context_works();
  expect_nothing_left({0, 1, 2});
}

TEST_F(PassAbort, ContextDestroyedByAnotherThreadIsNotCurrentWhereItWasOpened) {
  rpc::AgentGuard guard(group_[0]);
  auto context = std::make_unique<Context>(group_[0]);
  std::thread([&context] { context.reset(); }).join();
  EXPECT_EQ(current_context_id(), std::nullopt);
  expect_next_context_works();
  expect_nothing_left({0, 1, 2});
}

TEST_F(PassAbort, ContextDestroyedByAnExceptionOfItsOwnBackwardIsNotCurrentAfterwards) {
  rpc::AgentGuard guard(group_[0]);
  auto context = std::make_unique<Context>(group_[0]);
  const rpc::Id id = context->full_id();
  Tensor x = at::ones({2}).set_requires_grad(true);
  Tensor z = group_[0]->rpc_sync<&twice>("worker1", x) * 2;
  z.register_hook([&context](const Tensor&) {
    const std::unique_ptr<Context> unwound = std::move(context);
    throw std::runtime_error("this hook fails on purpose");
  });
  EXPECT_FALSE(status_of([&] { backward(id, {z.sum()}); }).ok());
  EXPECT_EQ(current_context_id(), std::nullopt);
  expect_next_context_works();
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
      // The worker is in the middle of a node. Its shutdown waits for the node.
      std::thread release([] { halt().let_go.set_value(); });
      group_.kill(2);
      release.join();
    });
    status = status_of([&] { backward(context, {y}, {.timeout = absl::Seconds(60)}); });
    killer.join();
  }
  // The gradient may have been sent before the end, or not.
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
    const absl::Status status = status_of([&] { backward(context, {y}, {.timeout = absl::Seconds(60)}); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(worker_of(status), "worker2") << status;
  }
  expect_nothing_left({0, 1});
}

// The loss is found by the thread that reads the connections, which must not run destructors of the program.
TEST_F(PassAbort, GraphOfALostWorkersContextIsDestroyedOnTheExecutor) {
  InGraph::destroyed = InGraph::destroyed_on_duty = 0;
  {
    rpc::AgentGuard guard(group_[2]);
    Context context(group_[2]);
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[2]->rpc_sync<&with_object>("worker1", x);
    group_.kill(2);
  }
  EXPECT_TRUE(eventually([] { return InGraph::destroyed == 1; }));
  EXPECT_EQ(InGraph::destroyed_on_duty, 0);
  expect_nothing_left({0, 1});
}

TEST_F(PassAbort, GraphOfAPassThatLosesItsRootIsDestroyedOnTheExecutor) {
  InGraph::destroyed = InGraph::destroyed_on_duty = 0;
  {
    rpc::AgentGuard guard(group_[2]);
    Context context(group_[2]);
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[2]->rpc_sync<&through_object>("worker1", x, "worker0").sum();
    std::thread backward_thread([&] {
      rpc::AgentGuard within(group_[2]);
      EXPECT_FALSE(status_of([&] { backward(context, {y}, {.timeout = absl::Seconds(60)}); }).ok());
    });
    halt().reached.future().wait();
    group_.kill(2);
    backward_thread.join();
  }
  EXPECT_TRUE(eventually([] { return InGraph::destroyed == 1; }));
  EXPECT_EQ(InGraph::destroyed_on_duty, 0);
  halt().let_go.set_value();
  expect_nothing_left({0, 1});
}

// An answer usually ends the pass, on a thread on duty.
TEST_F(PassAbort, GraphOfTheRootIsDestroyedBeforeBackwardReturns) {
  InGraph::destroyed = InGraph::destroyed_on_duty = 0;
  rpc::AgentGuard guard(group_[0]);
  Context context;
  Tensor x = at::ones({2}).set_requires_grad(true);
  Tensor y = with_object(group_[0]->rpc_sync<&twice>("worker1", x)).sum();
  backward(context, {y});
  y = Tensor();
  EXPECT_EQ(InGraph::destroyed, 1);
  EXPECT_EQ(InGraph::destroyed_on_duty, 0);
}

TEST_F(PassAbort, HandlerThatFailsInTheForwardLeavesTheContextUsable) {
  rpc::AgentGuard guard(group_[0]);
  Context context;
  Tensor x = at::ones({2}).set_requires_grad(true);
  Tensor y = group_[0]->rpc_sync<&twice>("worker1", x);
  EXPECT_EQ(status_of([&] { group_[0]->rpc_sync<&refuse>("worker1", y); }).code(),
            absl::StatusCode::kUnknown);
  backward(context, {group_[0]->rpc_sync<&twice>("worker2", y).sum()});
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 4.0)));
}

// Worker 2 takes no part in the context and sends every possible CLEANUP for it.
TEST_F(PassAbort, StrangerCannotEndAnothersContext) {
  rpc::AgentGuard guard(group_[0]);
  const auto end = [this](std::size_t at, const rpc::Id& context, uint64_t low) {
    proto::Cleanup cleanup;
    rpc::to_proto(context, *cleanup.mutable_context());
    cleanup.set_low(low);
    return group_[2]
        ->services()
        .call_service(group_[at]->services().self(), kCleanupService, cleanup.SerializeAsString(), nullptr,
                      {.deadline = absl::Now() + absl::Seconds(60)})
        .result()
        .status();
  };
  {
    Context context;
    const rpc::Id id = context.full_id();
    // CLEANUPs before the context's first message, with a watermark above it, and for future contexts.
    EXPECT_TRUE(end(1, id, ~uint64_t{0}).ok());
    EXPECT_TRUE(end(1, {id.origin, id.counter + 1000}, ~uint64_t{0}).ok());
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[0]->rpc_sync<&twice>("worker1", x);
    EXPECT_EQ(end(1, id, ~uint64_t{0}).code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(end(0, id, ~uint64_t{0}).code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(statistics(*group_[0]).refused_cleanups, 1u);
    EXPECT_EQ(statistics(*group_[1]).refused_cleanups, 1u);
    y = group_[0]->rpc_sync<&twice>("worker1", y);
    backward(context, {y.sum()});
    EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 4.0)));
  }
  // The table keeps nothing for unknown origins.
  for (uint64_t origin = 1; origin <= 100; ++origin) EXPECT_TRUE(end(1, {origin, 1}, 5).ok());
  EXPECT_LE(statistics(*group_[1]).context_origins, 3u);
  expect_nothing_left({0, 1, 2});
}

TEST_F(PassAbort, ForgedPassesOfALiveContextAreBounded) {
  rpc::AgentGuard guard(group_[0]);
  {
    Context context;
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[0]->rpc_sync<&twice>("worker1", x).sum();
    for (uint64_t counter = 1; counter <= 1000; ++counter) {
      proto::Mark mark;
      rpc::to_proto(context.full_id(), *mark.mutable_pass()->mutable_context());
      rpc::to_proto(rpc::Id{group_[2]->services().self().incarnation, (uint64_t{1} << 40) + counter},
                    *mark.mutable_pass()->mutable_pass());
      mark.set_number(1);
      // The message was never sent, so the pass fails. It is remembered.
      mark.add_marked()->set_message(1'000'000);
      group_[2]
          ->services()
          .call_service(group_[1]->services().self(), kMarkService, mark.SerializeAsString(), nullptr,
                        {.deadline = absl::Now() + absl::Seconds(60)})
          .result()
          .IgnoreError();
    }
    EXPECT_GE(statistics(*group_[1]).passes, 10u);
    EXPECT_LE(statistics(*group_[1]).passes, 256u);
    backward(context, {y});
    EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 2.0)));
  }
  expect_nothing_left({0, 1, 2});
}

// A worker serves messages for a short time after its passes were aborted at its shutdown. The pass of such a
// message must not wait for other workers: its answer would never be sent.
TEST_F(PassAbort, MessageAfterTheShutdownOfThePassesIsAnsweredAsFromALostWorker) {
  rpc::AgentGuard guard(group_[0]);
  {
    Context context;
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[0]->rpc_sync<&twice>("worker1", x).sum();
    absl::StatusOr<Engine*> engine = Engine::of(*group_[1]);
    ASSERT_TRUE(engine.ok()) << engine.status();
    (*engine)->shutdown(absl::CancelledError("the test stops the passes"));
    proto::Finish finish;
    rpc::to_proto(context.full_id(), *finish.mutable_pass()->mutable_context());
    rpc::to_proto(group_[0]->services().next_id(), *finish.mutable_pass()->mutable_pass());
    const auto reply = group_[0]->services().call_service(group_[1]->services().self(), kFinishService,
                                                          finish.SerializeAsString(), nullptr,
                                                          {.deadline = absl::Now() + absl::Seconds(10)});
    ASSERT_TRUE(reply.result().ok()) << reply.result().status();
    proto::PassAnswer answer;
    ASSERT_TRUE(answer.ParseFromString(reply.result()->body));
    const absl::Status failure = rpc::status_from_proto(answer.failure());
    EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable) << failure;
    EXPECT_EQ(worker_of(failure), "worker1");
    EXPECT_THAT(failure.message(), HasSubstr("shut down during a backward pass"));
  }
  group_.expect_empty();
  expect_nothing_left({0, 1, 2});
}

TEST_F(PassAbort, PlanWithoutATensorOfTheReceiverIsMalformed) {
  rpc::AgentGuard guard(group_[0]);
  {
    Context context;
    Tensor x = at::ones({2}).set_requires_grad(true);
    Tensor y = group_[0]->rpc_sync<&twice>("worker1", x).sum();
    uint64_t counter = uint64_t{1} << 40;
    for (uint32_t tensors : {0u, 1u, 1000u}) {
      proto::Finish finish;
      proto::Pass& pass = *finish.mutable_pass();
      rpc::to_proto(context.full_id(), *pass.mutable_context());
      rpc::to_proto(rpc::Id{group_[2]->services().self().incarnation, ++counter}, *pass.mutable_pass());
      pass.set_planned(true);
      for (uint32_t i = 0; i < tensors; ++i) {
        proto::SentTensors& sent = *pass.add_plan();
        sent.set_sender(group_[0]->services().self().incarnation);
        sent.add_outputs(i);
      }
      const auto reply = group_[2]->services().call_service(group_[1]->services().self(), kFinishService,
                                                            finish.SerializeAsString(), nullptr,
                                                            {.deadline = absl::Now() + absl::Seconds(60)});
      ASSERT_TRUE(reply.result().ok()) << reply.result().status();
      proto::PassAnswer answer;
      ASSERT_TRUE(answer.ParseFromString(reply.result()->body));
      const absl::Status failure = rpc::status_from_proto(answer.failure());
      EXPECT_EQ(failure.code(), absl::StatusCode::kInvalidArgument) << failure;
      EXPECT_THAT(failure.message(), ::testing::HasSubstr("malformed plan"));
    }
    backward(context, {y});
    EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 2.0)));
  }
  expect_nothing_left({0, 1, 2});
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
  const auto reply =
      group_[0]->services().call_service(group_[1]->services().self(), kMarkService, mark.SerializeAsString(),
                                         nullptr, {.deadline = absl::Now() + absl::Seconds(30)});
  EXPECT_EQ(reply.result().status().code(), absl::StatusCode::kNotFound) << reply.result().status();
  EXPECT_EQ(statistics(*group_[1]).late_messages, 1u);
  EXPECT_EQ(statistics(*group_[1]).contexts, 0u);
}

}  // namespace
}  // namespace gradwire::autograd
