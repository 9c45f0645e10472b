#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/group.h"

// The calls and bytes in progress on one worker are bounded, and every credit is given back.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

// Calls that stay in progress until the test releases them.
class HeldCalls {
 public:
  Future<int64_t> add() {
    Promise<int64_t> promise;
    MutexLock lock(mutex_);
    if (letting_go_) {
      promise.set_value(1);
    } else {
      promises_.push_back(promise);
      changed_.notify_all();
    }
    return promise.future();
  }
  void wait_for(std::size_t count) {
    MutexLock lock(mutex_);
    while (promises_.size() < count) changed_.wait(mutex_);
  }
  void release() {
    std::vector<Promise<int64_t>> promises;
    {
      MutexLock lock(mutex_);
      promises.swap(promises_);
    }
    for (const Promise<int64_t>& promise : promises) promise.set_value(1);
  }
  // Also releases calls that have not arrived yet: a call may begin long after its caller has cancelled it.
  void let_go(bool on) {
    {
      MutexLock lock(mutex_);
      letting_go_ = on;
    }
    if (on) release();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool letting_go_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Promise<int64_t>> promises_ ABSL_GUARDED_BY(mutex_);
};
HeldCalls& held_calls() {
  static auto* instance = new HeldCalls;
  return *instance;
}

Future<int64_t> hold_open(const std::string&) { return held_calls().add(); }
GRADWIRE_RPC(hold_open)
int64_t echo_number(int64_t value) { return value; }
GRADWIRE_RPC(echo_number)
int64_t complain() { throw std::runtime_error("no"); }
GRADWIRE_RPC(complain)

struct Crowd {
  std::atomic<int> inside{0};
  std::atomic<int> peak{0};
};
Crowd& crowd() {
  static auto* instance = new Crowd;
  return *instance;
}
int64_t visit() {
  const int inside = crowd().inside.fetch_add(1) + 1;
  for (int peak = crowd().peak; inside > peak && !crowd().peak.compare_exchange_weak(peak, inside);) {
  }
  std::this_thread::yield();
  crowd().inside.fetch_sub(1);
  return 1;
}
GRADWIRE_RPC(visit)

RpcBackendOptions with_flow(FlowOptions flow) {
  RpcBackendOptions options;
  options.flow = flow;
  return options;
}

// Makes a call while the window is full, and returns its status.
absl::Status call_meanwhile(Agent& agent, absl::Duration timeout = absl::Seconds(30)) {
  return status_of([&] { agent.rpc_sync<&echo_number>(Destination("worker1").with_timeout(timeout), 1); });
}

TEST(FlowControl, FullWindowRefusesNamingWorkerNumbersAndOption) {
  testing::Group group(2, with_flow({.max_calls = 2, .when_full = FlowPolicy::kResourceExhausted}));
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 2; ++i) calls.push_back(group[0]->rpc_async<&hold_open>("worker1", ""));
  held_calls().wait_for(2);
  const absl::Status status = call_meanwhile(*group[0]);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(worker_of(status), "worker1");
  for (const char* part : {"echo_number\"", "worker \"worker1\"", "2 calls", "max_calls 2"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  // The windows of other pairs of workers have room.
  EXPECT_EQ(group[0]->rpc_sync<&echo_number>("worker0", 3), 3);
  EXPECT_EQ(group[1]->rpc_sync<&echo_number>("worker0", 4), 4);
  held_calls().release();
  for (const auto& call : calls) EXPECT_EQ(call.wait(), 1);
  EXPECT_TRUE(call_meanwhile(*group[0]).ok());
  group.expect_empty();
}

TEST(FlowControl, NoMoreCallsAreUnderWayThanTheWindowHolds) {
  testing::Group group(2, with_flow({.max_calls = 3}));
  crowd().peak = 0;
  std::vector<std::thread> threads;
  std::atomic<int64_t> sum{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<Future<int64_t>> calls;
      for (int i = 0; i < 200; ++i) calls.push_back(group[0]->rpc_async<&visit>("worker1"));
      for (const auto& call : calls) sum += call.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 800);
  EXPECT_LE(crowd().peak, 3);
  group.expect_empty();
}

TEST(FlowControl, BytesCountAndALargeMessageGoesAlone) {
  testing::Group group(
      2, with_flow({.max_calls = 100, .max_bytes = 1'000, .when_full = FlowPolicy::kResourceExhausted}));
  Future<int64_t> large = group[0]->rpc_async<&hold_open>("worker1", std::string(100'000, 'x'));
  held_calls().wait_for(1);
  const absl::Status status = call_meanwhile(*group[0]);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_bytes 1000"));
  held_calls().release();
  EXPECT_EQ(large.wait(), 1);
  // A large message is not admitted beside a small one.
  Future<int64_t> small = group[0]->rpc_async<&hold_open>("worker1", "");
  held_calls().wait_for(1);
  EXPECT_EQ(group[0]->rpc_async<&hold_open>("worker1", std::string(1'000, 'x')).result().status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(call_meanwhile(*group[0]).ok());
  held_calls().release();
  EXPECT_EQ(small.wait(), 1);
  group.expect_empty();
}

TEST(FlowControl, WaitEndsWithTheCallsDeadlineAndSaysWhy) {
  testing::Group group(2, with_flow({.max_calls = 1}));
  Future<int64_t> call = group[0]->rpc_async<&hold_open>("worker1", "");
  held_calls().wait_for(1);
  const absl::Status status = call_meanwhile(*group[0], absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(worker_of(status), "worker1");
  for (const char* part : {"the flow window was full", "deadline after 50ms", "1 calls", "max_calls 1"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  held_calls().release();
  EXPECT_EQ(call.wait(), 1);
  EXPECT_TRUE(call_meanwhile(*group[0]).ok());
  group.expect_empty();
}

TEST(FlowControl, PlacesComeBackWhicheverWayACallEnds) {
  testing::Group group(2, with_flow({.max_calls = 1, .when_full = FlowPolicy::kResourceExhausted}));
  for (const std::string to : {"worker1", "worker0"}) {
    const Destination soon = Destination(to).with_timeout(absl::Milliseconds(20));
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(group[0]->rpc_sync<&echo_number>(to, 1), 1);
      EXPECT_EQ(status_of([&] { group[0]->rpc_sync<&complain>(to); }).code(), absl::StatusCode::kUnknown);
      // Its credit is in use while it runs, and given back when its caller has cancelled it.
      Future<int64_t> unwanted = group[0]->rpc_async<&hold_open>(to, "");
      EXPECT_EQ(group[0]->rpc_async<&echo_number>(to, 1).result().status().code(),
                absl::StatusCode::kResourceExhausted);
      unwanted.cancel();
      EXPECT_EQ(unwanted.result().status().code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(group[0]->rpc_async<&hold_open>(soon, "").result().status().code(),
                absl::StatusCode::kDeadlineExceeded);
      held_calls().release();
    }
  }
  RRef<int64_t> kept = group[0]->remote<&echo_number>("worker1", 5);
  kept.confirmed().wait();
  EXPECT_EQ(kept.to_here(), 5);
  kept = RRef<int64_t>();
  held_calls().let_go(true);
  group.expect_empty();
  held_calls().let_go(false);
}

TEST(FlowControl, MessagesOfTheFrameworkAreNeverHeldUp) {
  testing::Group group(2, with_flow({.max_calls = 1}));
  RRef<int64_t> kept = group[0]->remote<&echo_number>("worker1", 5);
  kept.confirmed().wait();
  Future<int64_t> call = group[0]->rpc_async<&hold_open>("worker1", "");
  held_calls().wait_for(1);
  EXPECT_EQ(group[1]->tables().owned_rrefs, 1u);
  kept = RRef<int64_t>();
  EXPECT_TRUE(eventually([&] { return group[1]->tables().owned_rrefs == 0; }, absl::Seconds(30)));
  // A Cancel is not delayed either.
  call.cancel();
  EXPECT_TRUE(call_meanwhile(*group[0]).ok());
  held_calls().release();
  group.expect_empty();
}

TEST(FlowControl, ShutdownEndsTheWait) {
  testing::Group group(2, with_flow({.max_calls = 1}));
  Future<int64_t> call = group[0]->rpc_async<&hold_open>("worker1", "");
  held_calls().wait_for(1);
  absl::Status status;
  std::thread waiter([&] { status = call_meanwhile(*group[0]); });
  group.kill(0);
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  held_calls().release();
}

TEST(FlowControl, DeathOfTheWorkerEndsTheWait) {
  testing::Group group(2, with_flow({.max_calls = 1}));
  Future<int64_t> call = group[0]->rpc_async<&hold_open>("worker1", "");
  held_calls().wait_for(1);
  absl::Status status;
  std::thread waiter([&] { status = call_meanwhile(*group[0]); });
  group.kill(1);
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kUnavailable);
  held_calls().release();
}

Promise<absl::StatusCode>& nested_end() {
  static auto* promise = new Promise<absl::StatusCode>;
  return *promise;
}
int64_t call_twice(const std::string& to) {
  Future<int64_t> first = rpc_async<&hold_open>(to, "");
  const absl::StatusCode code = status_of([&] { rpc_sync<&echo_number>(to, 1); }).code();
  nested_end().set_value(code);
  return 1;
}
GRADWIRE_RPC(call_twice)

TEST(FlowControl, HandlerWhoseCallerGaveUpWaitsNoLonger) {
  testing::Group group(2, with_flow({.max_calls = 1}));
  nested_end() = Promise<absl::StatusCode>();
  Future<int64_t> call = group[0]->rpc_async<&call_twice>("worker1", "worker0");
  held_calls().wait_for(1);
  call.cancel();
  EXPECT_EQ(nested_end().future().wait(), absl::StatusCode::kCancelled);
  held_calls().release();
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
