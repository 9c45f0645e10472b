// What goes wrong in a context: handlers that fail, workers that die, passes that nobody wants any more.

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
using testing::HasSubstr;

const BackwardOptions kOptions = {.timeout = absl::Seconds(30)};
// A loss is noticed at once, a cancellation arrives in a moment; a slow machine has a share. A pass that
// waited for its timeout would take longer.
constexpr absl::Duration kSoon = absl::Seconds(25);

// What handlers and hooks of a test do besides.
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
// Its backward runs the script, once, after that of all that was made of its result.
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
// Through worker `next` with the script in the backward there, and its own share around it.
Tensor through(const Tensor& x, const std::string& next) { return rpc_sync<&scripted>(next, x * 2) * 5; }
Tensor runs_script_first(const Tensor& x) {
  script.run();
  return x * 3;
}
// Runs the backward there; what it ended with.
int64_t backward_here(int64_t context, const Tensor& loss);

GRADWIRE_RPC(triple)
GRADWIRE_RPC(scripted)
GRADWIRE_RPC(fails_after_a_call)
GRADWIRE_RPC(fails_in_a_coroutine)
GRADWIRE_RPC(through)
GRADWIRE_RPC(runs_script_first)
GRADWIRE_RPC(backward_here)

// How backward_here ended.
struct Ended {
  absl::Notification done;
  absl::Status status;
};
std::shared_ptr<Ended> ended;

int64_t backward_here(int64_t context, const Tensor& loss) {
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

TEST(Failures, WorkerLostInTheForwardIsUnavailableAndTheRestGoesOn) {
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
  const Future<Tensor> under_way = rpc_async<&runs_script_first>("worker2", x);
  ASSERT_TRUE(go.WaitForNotificationWithTimeout(kSoon));
  std::thread killer([&] { group.kill(2); });
  const bool noticed = under_way.wait_for(kSoon);
  killed.Notify();
  killer.join();
  ASSERT_TRUE(noticed);
  EXPECT_EQ(under_way.result().status().code(), StatusCode::kUnavailable) << under_way.result().status();
  EXPECT_EQ(status_of([&] { rpc_sync<&triple>("worker2", x); }).code(), StatusCode::kUnavailable);

  // What it has of the graph is lost, the rest is not.
  const absl::Time begun = absl::Now();
  const absl::Status status =
      status_of([&] { gradwire::autograd::backward(context, {(kept + lost).sum()}, kOptions); });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker2"));
  EXPECT_LT(absl::Now() - begun, kSoon);
  gradwire::autograd::backward(context, {kept.sum()}, kOptions);
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({3}, 3.0)));
}

// The script kills worker2 while the pass is between the workers.
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
  // Usable without it.
  const Tensor again = rpc_sync<&triple>("worker1", x);
  gradwire::autograd::backward(context, {again.sum()}, kOptions);
}

TEST(Failures, WorkerLostInTheBackwardBeforeItsGradientsIsUnavailable) {
  // The hook runs here, when the gradients for worker2 are about to leave.
  expect_lost_in_the_backward([](const Tensor& x) { return scripted(rpc_sync<&triple>("worker2", x)); }, 2);
}

TEST(Failures, WorkerLostInTheBackwardBehindAnotherIsUnavailable) {
  // The hook runs on worker1, whose gradients for worker2 are about to leave.
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
  const Future<int64_t> pass = rpc_async<&backward_here>("worker1", context.id(), y);
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

TEST(Failures, PassIsAbortedWhenItsContextGoes) {
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
    pass = rpc_async<&backward_here>("worker1", context.id(), y);
    ASSERT_TRUE(inside.WaitForNotificationWithTimeout(kSoon));
  }
  const bool over = ended->done.WaitForNotificationWithTimeout(kSoon);
  go_on.Notify();
  ASSERT_TRUE(over);
  EXPECT_EQ(ended->status.code(), StatusCode::kAborted) << ended->status;
  EXPECT_TRUE(pass.wait_for(kSoon));
}

}  // namespace
