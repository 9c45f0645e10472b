// Failures in an autograd context: handlers that throw, workers that die, and backward passes that are
// cancelled.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

namespace {

using absl::StatusCode;
using at::Tensor;
using gradwire::Error;
using gradwire::Future;
using gradwire::status_of;
using gradwire::autograd::BackwardOptions;
using gradwire::autograd::Context;
using gradwire::autograd::get_gradients;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::rpc_async;
using gradwire::rpc::rpc_sync;
using gradwire::rpc::RRef;
using gradwire::rpc::testing::Group;
using ::testing::HasSubstr;

const BackwardOptions kOptions = {.timeout = absl::Seconds(30)};
// A loss or a cancellation must be noticed within this time, also on a slow machine. A pass that waited for
// its timeout (kOptions) would take longer.
constexpr absl::Duration kSoon = absl::Seconds(25);

// The action that a test wants a handler or a hook to execute, once.
struct Script {
  gradwire::Mutex mutex;
  std::function<void()> action ABSL_GUARDED_BY(mutex);
  void set(std::function<void()> what) {
    gradwire::MutexLock lock(mutex);
    action = std::move(what);
  }
  void run() {
    std::function<void()> what;
    {
      gradwire::MutexLock lock(mutex);
      what = std::exchange(action, nullptr);
    }
    if (what) what();
  }
};
Script script;

Tensor triple(const Tensor& x) { return x * 3; }
// A hook runs the script in the backward pass, after the backward of everything that was computed from the
// result.
Tensor scripted(const Tensor& x) {
  Tensor y = x * 3;
  y.register_hook([](const Tensor&) { script.run(); });
  return y;
}
Tensor fails_after_a_call(const Tensor& x, const std::string& next) {
  const Tensor y = rpc_sync<&triple>(next, x * 2);
  throw std::runtime_error("the handler broke");
}
Future<Tensor> fails_in_a_coroutine(const Tensor& x, const std::string& next) {
  const Future<Tensor> call = rpc_async<&triple>(next, x * 2);
  const Tensor y = co_await call;
  throw std::runtime_error("the coroutine broke");
}
// Calls scripted() on worker `next`, with an operation of its own before and after the call.
Tensor through(const Tensor& x, const std::string& next) { return rpc_sync<&scripted>(next, x * 2) * 5; }
Tensor runs_script_first(const Tensor& x) {
  script.run();
  return x * 3;
}
// Runs the backward pass on the callee, and stores its status in `ended`.
int64_t run_backward(int64_t context, const Tensor& loss);

GRADWIRE_RPC(triple)
GRADWIRE_RPC(scripted)
GRADWIRE_RPC(fails_after_a_call)
GRADWIRE_RPC(fails_in_a_coroutine)
GRADWIRE_RPC(through)
GRADWIRE_RPC(runs_script_first)
GRADWIRE_RPC(run_backward)

// The result of run_backward().
struct Ended {
  absl::Notification done;
  absl::Status status;
};
std::shared_ptr<Ended> ended;

int64_t run_backward(int64_t context, const Tensor& loss) {
  ended->status = status_of([&] { gradwire::autograd::backward(context, {loss.sum()}, kOptions); });
  ended->done.Notify();
  return 0;
}

TEST(Failures, HandlerErrorLeavesTheContextUsable) {
  Group group(3);
  AgentGuard guard(group[0]);
  Tensor x = at::ones({3}).requires_grad_();
  Context context;
  const Tensor before = rpc_sync<&triple>("worker1", x);
  for (int round = 0; round < 3; ++round) {
    absl::Status status = status_of([&] { rpc_sync<&fails_after_a_call>("worker1", before, "worker2"); });
    EXPECT_EQ(status.code(), StatusCode::kUnknown);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the handler broke"));
    status = status_of([&] { rpc_sync<&fails_in_a_coroutine>("worker1", before, "worker2"); });
    EXPECT_EQ(status.code(), StatusCode::kUnknown);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the coroutine broke"));
    const RRef<Tensor> never = group[0]->remote<&fails_after_a_call>("worker1", x, "worker0");
    status = status_of([&] { never.to_here(); });
    EXPECT_EQ(status.code(), StatusCode::kUnknown);
  }
  const Tensor after = rpc_sync<&triple>("worker2", before);
  gradwire::autograd::backward(context, {(before + after).sum()}, kOptions);
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({3}, 12.0)));
}

TEST(Failures, WorkerLostInTheForwardIsUnavailableAndOtherPassesWork) {
  Group group(3);
  AgentGuard guard(group[0]);
  Tensor x = at::ones({3}).requires_grad_();
  Context context;
  const Tensor kept = rpc_sync<&triple>("worker1", x);
  const Tensor lost = rpc_sync<&triple>("worker2", x);
  absl::Notification go, killed;
  script.set([&] {
    go.Notify();
    killed.WaitForNotification();
  });
  const Future<Tensor> call = rpc_async<&runs_script_first>("worker2", x);
  ASSERT_TRUE(go.WaitForNotificationWithTimeout(kSoon));
  std::thread killer([&] { group.kill(2); });
  const bool noticed = call.wait_for(kSoon);
  killed.Notify();
  killer.join();
  ASSERT_TRUE(noticed);
  EXPECT_EQ(call.result().status().code(), StatusCode::kUnavailable) << call.result().status();
  EXPECT_EQ(status_of([&] { rpc_sync<&triple>("worker2", x); }).code(), StatusCode::kUnavailable);

  // The part of the graph on worker2 is lost. Passes that do not need it still work.
  const absl::Time begun = absl::Now();
  const absl::Status status =
      status_of([&] { gradwire::autograd::backward(context, {(kept + lost).sum()}, kOptions); });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker2"));
  EXPECT_LT(absl::Now() - begun, kSoon);
  gradwire::autograd::backward(context, {kept.sum()}, kOptions);
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({3}, 3.0)));
}

// Kills a worker while its gradients are about to be sent. The pass must fail soon with Unavailable, and the
// context must stay usable for passes that do not need the worker. `forward` must call scripted().
void expect_lost_in_the_backward(const std::function<Tensor(const Tensor&)>& forward, std::size_t victim) {
  Group group(3);
  AgentGuard guard(group[0]);
  Tensor x = at::ones({3}).requires_grad_();
  Context context;
  const Tensor y = forward(x);
  script.set([&] { group.kill(victim); });
  const absl::Time begun = absl::Now();
  const absl::Status status = status_of([&] { gradwire::autograd::backward(context, {y.sum()}, kOptions); });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker2"));
  EXPECT_LT(absl::Now() - begun, kSoon);
  // The context still works without the lost worker.
  const Tensor again = rpc_sync<&triple>("worker1", x);
  gradwire::autograd::backward(context, {again.sum()}, kOptions);
}

TEST(Failures, WorkerLostInTheBackwardBeforeItsGradientsIsUnavailable) {
  // The hook runs on worker0, before the gradients for worker2 are sent.
  expect_lost_in_the_backward([](const Tensor& x) { return scripted(rpc_sync<&triple>("worker2", x)); }, 2);
}

TEST(Failures, WorkerLostInTheBackwardBehindAnotherIsUnavailable) {
  // The hook runs on worker1, before its gradients for worker2 are sent.
  expect_lost_in_the_backward(
      [](const Tensor& x) { return rpc_sync<&scripted>("worker1", rpc_sync<&triple>("worker2", x)); }, 2);
}

TEST(Failures, PassIsAbortedWhenItsCallIsCancelled) {
  Group group(3);
  AgentGuard guard(group[0]);
  Tensor x = at::ones({3}).requires_grad_();
  Context context;
  const Tensor y = rpc_sync<&through>("worker1", x, "worker2");
  absl::Notification inside, go_on;
  script.set([&] {
    inside.Notify();
    go_on.WaitForNotification();
  });
  ended = std::make_shared<Ended>();
  const Future<int64_t> pass = rpc_async<&run_backward>("worker1", context.id(), y);
  ASSERT_TRUE(inside.WaitForNotificationWithTimeout(kSoon));
  pass.cancel();
  const bool over = ended->done.WaitForNotificationWithTimeout(kSoon);
  go_on.Notify();
  ASSERT_TRUE(over);
  EXPECT_EQ(ended->status.code(), StatusCode::kCancelled) << ended->status;
  const Tensor again = rpc_sync<&triple>("worker1", x);
  gradwire::autograd::backward(context, {again.sum()}, kOptions);
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({3}, 3.0)));
}

TEST(Failures, PassIsAbortedWhenItsContextIsReleased) {
  Group group(3);
  AgentGuard guard(group[0]);
  Tensor x = at::ones({3}).requires_grad_();
  absl::Notification inside, go_on;
  ended = std::make_shared<Ended>();
  Future<int64_t> pass;
  {
    Context context;
    const Tensor y = rpc_sync<&through>("worker1", x, "worker2");
    script.set([&] {
      inside.Notify();
      go_on.WaitForNotification();
    });
    pass = rpc_async<&run_backward>("worker1", context.id(), y);
    ASSERT_TRUE(inside.WaitForNotificationWithTimeout(kSoon));
  }
  const bool over = ended->done.WaitForNotificationWithTimeout(kSoon);
  go_on.Notify();
  ASSERT_TRUE(over);
  EXPECT_EQ(ended->status.code(), StatusCode::kAborted) << ended->status;
  EXPECT_TRUE(pass.wait_for(kSoon));
}

}  // namespace
