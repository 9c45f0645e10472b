#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/testing/group.h"

// The calls that an agent reports, and how they belong together.
namespace gradwire::rpc {
namespace {

using ::testing::EndsWith;

// Calls that stay open until the test ends them.
class Held {
 public:
  Future<int64_t> add() {
    Promise<int64_t> promise;
    MutexLock lock(mutex_);
    promises_.push_back(promise);
    identities_.push_back(CallContext::current()->identity());
    changed_.notify_all();
    return promise.future();
  }
  std::vector<CallIdentity> wait_for(std::size_t count) {
    MutexLock lock(mutex_);
    while (promises_.size() < count) changed_.wait(mutex_);
    return identities_;
  }
  void release() {
    std::vector<Promise<int64_t>> promises;
    {
      MutexLock lock(mutex_);
      promises.swap(promises_);
      identities_.clear();
    }
    for (const Promise<int64_t>& promise : promises) promise.set_value(1);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Promise<int64_t>> promises_ ABSL_GUARDED_BY(mutex_);
  std::vector<CallIdentity> identities_ ABSL_GUARDED_BY(mutex_);
};
Held& held() {
  static auto* instance = new Held;
  return *instance;
}

Future<int64_t> hold() { return held().add(); }
GRADWIRE_RPC(hold)
int64_t nothing() { return 0; }
GRADWIRE_RPC(nothing)
int64_t ask(const std::string& worker) { return rpc_sync<&hold>(worker); }
GRADWIRE_RPC(ask)
// The second call is made in a continuation.
Future<int64_t> ask_later(const std::string& worker) {
  co_await rpc_async<&nothing>(worker);
  co_return co_await rpc_async<&hold>(worker);
}
GRADWIRE_RPC(ask_later)

struct Till {
  int64_t hold() { return held().add().wait(); }
};
GRADWIRE_RPC_SERIAL_CLASS(Till)
GRADWIRE_RPC_METHOD(Till, hold)

const CallReport* find(const std::vector<CallReport>& calls, const std::string& callee) {
  const auto found = std::find_if(calls.begin(), calls.end(), [&callee](const CallReport& call) {
    return call.callee.size() >= callee.size() &&
           call.callee.compare(call.callee.size() - callee.size(), callee.size(), callee) == 0;
  });
  return found == calls.end() ? nullptr : &*found;
}

uint64_t incarnation(const std::shared_ptr<Agent>& agent) { return agent->services().self().incarnation; }

TEST(OpenCalls, ChainOfCallsIsJoinedByIdentityAndParent) {
  for (const bool later : {false, true}) {
    testing::Group group(3);
    const Future<int64_t> call = later ? group[0]->rpc_async<&ask_later>("worker1", "worker2")
                                       : group[0]->rpc_async<&ask>("worker1", "worker2");
    const CallIdentity innermost = held().wait_for(1).front();
    // A served call leaves the table a moment after its caller has the answer.
    ASSERT_TRUE(eventually([&] { return group[2]->services().open_calls().served.size() == 1; }));

    const OpenCalls first = group[0]->services().open_calls();
    const OpenCalls middle = group[1]->services().open_calls();
    const OpenCalls last = group[2]->services().open_calls();
    ASSERT_EQ(first.made.size(), 1u);
    ASSERT_EQ(middle.served.size(), 1u);
    ASSERT_EQ(middle.made.size(), 1u);
    ASSERT_EQ(last.served.size(), 1u);
    // Both ends give a call the same identity.
    EXPECT_EQ(first.made[0].identity, middle.served[0].identity);
    EXPECT_EQ(middle.made[0].identity, last.served[0].identity);
    EXPECT_EQ(last.served[0].identity, innermost);
    EXPECT_EQ(first.made[0].identity.caller, incarnation(group[0]));
    EXPECT_EQ(innermost.caller, incarnation(group[1]));
    // The call of the program has no parent. The parent of the second is the call that worker1 serves.
    EXPECT_FALSE(first.made[0].parent);
    EXPECT_TRUE(middle.made[0].parent.is(middle.served[0].identity));
    EXPECT_EQ(first.made[0].peer, incarnation(group[1]));
    EXPECT_EQ(middle.served[0].peer, incarnation(group[0]));
    EXPECT_EQ(first.made[0].state, CallState::kSent);
    EXPECT_EQ(middle.served[0].state, CallState::kNested);
    EXPECT_EQ(last.served[0].state, CallState::kRunning);
    EXPECT_THAT(last.served[0].callee, EndsWith("::hold"));
    EXPECT_EQ(last.served[0].callee, middle.made[0].callee);
    EXPECT_LT(middle.served[0].deadline, absl::InfiniteFuture());
    EXPECT_GE(middle.served[0].deadline, middle.served[0].since);

    held().release();
    EXPECT_EQ(call.wait(), 1);
    group.expect_empty();
    EXPECT_TRUE(group[0]->services().open_calls(/*services=*/true).made.empty());
  }
}

TEST(OpenCalls, CallThatWaitsForACreditIsReported) {
  RpcBackendOptions options;
  options.flow.max_calls = 1;
  testing::Group group(2, options);
  const Future<int64_t> first = group[0]->rpc_async<&hold>("worker1");
  held().wait_for(1);
  std::thread second([&group] { EXPECT_EQ(group[0]->rpc_sync<&nothing>("worker1"), 0); });
  EXPECT_TRUE(eventually([&group] {
    const OpenCalls open = group[0]->services().open_calls();
    const CallReport* waiting = find(open.made, "nothing");
    return waiting != nullptr && waiting->state == CallState::kWaitingForCredit &&
           waiting->identity.caller == incarnation(group[0]) && waiting->peer == incarnation(group[1]);
  }));
  EXPECT_EQ(group[1]->services().open_calls().served.size(), 1u);
  held().release();
  second.join();
  EXPECT_EQ(first.wait(), 1);
  group.expect_empty();
}

TEST(OpenCalls, CallThatWaitsForItsTurnIsQueued) {
  testing::Group group(2);
  {
    const RRef<Till> till = group[0]->remote<Till>("worker1");
    const Future<int64_t> first = till.rpc_async<&Till::hold>();
    held().wait_for(1);
    const Future<int64_t> second = till.rpc_async<&Till::hold>();
    EXPECT_TRUE(eventually([&group] {
      const OpenCalls open = group[1]->services().open_calls();
      return std::count_if(open.served.begin(), open.served.end(),
                           [](const CallReport& call) { return call.state == CallState::kQueued; }) == 1;
    }));
    held().release();
    EXPECT_EQ(first.wait(), 1);
    held().wait_for(1);
    held().release();
    EXPECT_EQ(second.wait(), 1);
  }
  group.expect_empty();
}

TEST(CallParent, ScopesNestAndEnd) {
  EXPECT_FALSE(current_parent());
  {
    const ParentScope pass(CallParent::pass(3, 4));
    EXPECT_EQ(current_parent(), CallParent::pass(3, 4));
    {
      // A handler that runs on this thread meanwhile.
      const ParentScope none({});
      EXPECT_FALSE(current_parent());
      ExecutionSlot<CallContext>::Scope scope(std::make_shared<CallContext>(
          Worker{"a", 0, 7}, absl::InfiniteFuture(), CancellationToken(), CallIdentity{7, 1}));
      EXPECT_EQ(current_parent(), CallParent::call({7, 1}));
    }
    EXPECT_EQ(current_parent(), CallParent::pass(3, 4));
  }
  EXPECT_FALSE(current_parent());
}

}  // namespace
}  // namespace gradwire::rpc
