#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/testing/group.h"

// Many calls at once, nested calls, handlers that wait, deadlines and cancellation.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

RpcBackendOptions with_threads(int threads, int max_threads = 256) {
  RpcBackendOptions options;
  options.num_worker_threads = threads;
  options.max_worker_threads = max_threads;
  return options;
}

// Counts how often two of its methods run at the same time.
template <bool kSerial>
struct Account {
  int64_t deposit(int64_t amount) {
    if (inside.fetch_add(1) != 0) overlaps.fetch_add(1);
    const int64_t result = total.fetch_add(amount) + amount;
    inside.fetch_sub(1);
    return result;
  }
  int64_t balance() { return total.load(); }
  int64_t overlapped() { return overlaps.load(); }
  std::atomic<int64_t> total{0};
  std::atomic<int> inside{0};
  std::atomic<int64_t> overlaps{0};
};
using SerialAccount = Account<true>;
using SharedAccount = Account<false>;
GRADWIRE_RPC_SERIAL_CLASS(SerialAccount)
GRADWIRE_RPC_METHOD(SerialAccount, deposit)
GRADWIRE_RPC_METHOD(SerialAccount, balance)
GRADWIRE_RPC_METHOD(SerialAccount, overlapped)
GRADWIRE_RPC_CLASS(SharedAccount)
GRADWIRE_RPC_METHOD(SharedAccount, deposit)
GRADWIRE_RPC_METHOD(SharedAccount, balance)
GRADWIRE_RPC_METHOD(SharedAccount, overlapped)

template <class T>
void ten_threads_deposit(const RRef<T>& account) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 10; ++t) {
    threads.emplace_back([account] {
      std::vector<Future<int64_t>> results;
      for (int i = 0; i < 50; ++i) results.push_back(account.template rpc_async<&T::deposit>(1));
      for (const auto& result : results) result.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.template rpc_sync<&T::balance>(), 500);
}

TEST(Concurrency, TenThreadsCallOneObject) {
  testing::Group group(2);
  {
    RRef<SharedAccount> account = group[0]->remote<SharedAccount>("worker1");
    ten_threads_deposit(account);
  }
  group.expect_empty();
}

TEST(Concurrency, SerialObjectRunsOneMethodAtATime) {
  testing::Group group(2);
  {
    RRef<SerialAccount> account = group[0]->remote<SerialAccount>("worker1");
    ten_threads_deposit(account);
    EXPECT_EQ(account.rpc_sync<&SerialAccount::overlapped>(), 0);
  }
  group.expect_empty();
}

struct Recorder {
  int64_t add(int64_t value) {
    values.push_back(value);
    return value;
  }
  std::vector<int64_t> all() { return values; }
  std::vector<int64_t> values;
};
GRADWIRE_RPC_SERIAL_CLASS(Recorder)
GRADWIRE_RPC_METHOD(Recorder, add)
GRADWIRE_RPC_METHOD(Recorder, all)

TEST(Concurrency, SerialObjectKeepsArrivalOrder) {
  testing::Group group(2);
  {
    RRef<Recorder> recorder = group[0]->remote<Recorder>("worker1");
    std::vector<Future<int64_t>> results;
    for (int i = 0; i < 200; ++i) results.push_back(recorder.rpc_async<&Recorder::add>(i));
    for (const auto& result : results) result.wait();
    const std::vector<int64_t> all = recorder.rpc_sync<&Recorder::all>();
    ASSERT_EQ(all.size(), 200u);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(all[i], i);
  }
  group.expect_empty();
}

struct Starts {
  Mutex mutex;
  std::map<int64_t, std::vector<int64_t>> by_caller ABSL_GUARDED_BY(mutex);
};
Starts& starts() {
  static auto* instance = new Starts;
  return *instance;
}
void note_start(int64_t caller, int64_t number) {
  MutexLock lock(starts().mutex);
  starts().by_caller[caller].push_back(number);
}
GRADWIRE_RPC(note_start)

TEST(Concurrency, OrderedCallsOfEachThreadStartInOrder) {
  testing::Group group(2);
  {
    MutexLock lock(starts().mutex);
    starts().by_caller.clear();
  }
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 10; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Future<void>> results;
      for (int64_t i = 0; i < 50; ++i) {
        results.push_back(group[0]->rpc_async<&note_start>(Destination("worker1").ordered(), t, i));
      }
      for (const auto& result : results) result.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  {
    MutexLock lock(starts().mutex);
    for (int64_t t = 0; t < 10; ++t) {
      ASSERT_EQ(starts().by_caller[t].size(), 50u);
      for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(starts().by_caller[t][i], i);
    }
  }
  group.expect_empty();
}

// A promise that the test and its handlers share.
struct Gate {
  Mutex mutex;
  std::optional<Promise<int64_t>> promise ABSL_GUARDED_BY(mutex);
  Future<int64_t> renew() {
    MutexLock lock(mutex);
    promise.emplace();
    return promise->future();
  }
  Promise<int64_t> get() {
    MutexLock lock(mutex);
    return *promise;
  }
};
Gate& gate() {
  static auto* instance = new Gate;
  return *instance;
}
int64_t wait_at_gate() { return gate().get().future().wait(); }
GRADWIRE_RPC(wait_at_gate)
void open_gate(int64_t value) { gate().get().set_value(value); }
GRADWIRE_RPC(open_gate)

TEST(Concurrency, OrderedCallThatBlocksLetsTheNextStart) {
  testing::Group group(2, with_threads(1));
  (void)gate().renew();
  const Destination to = Destination("worker1").ordered();
  Future<int64_t> first = group[0]->rpc_async<&wait_at_gate>(to);
  group[0]->rpc_sync<&open_gate>(to, 5);
  EXPECT_EQ(first.wait(), 5);
  group.expect_empty();
}

struct Slow {
  int64_t hold() { return gate().get().future().wait(); }
  int64_t quick() { return 1; }
};
GRADWIRE_RPC_SERIAL_CLASS(Slow)
GRADWIRE_RPC_METHOD(Slow, hold)
GRADWIRE_RPC_METHOD(Slow, quick)

TEST(Concurrency, CallThatExpiresBeforeItsTurnOnASerialObjectNamesTheRunningCall) {
  testing::Group group(2);
  Future<int64_t> opened = gate().renew();
  {
    RRef<Slow> slow = group[0]->remote<Slow>("worker1");
    Future<int64_t> held = slow.with_timeout(absl::InfiniteDuration()).rpc_async<&Slow::hold>();
    // The callee's answer comes 200 ms before the caller's own timer. If the machine pauses in that time, the
    // timer may be first: then try again.
    constexpr absl::Duration kTimeout = absl::Seconds(4);
    const RRef<Slow> limited = slow.with_timeout(kTimeout);
    absl::Status status;
    for (int attempt = 0; attempt < 10; ++attempt) {
      const absl::Time begin = absl::Now();
      status = limited.rpc_async<&Slow::quick>().result().status();
      if (absl::Now() - begin < kTimeout) break;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("expired while it waited for its turn on a serial object"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Slow::hold\", called by worker \"worker0\""));
    EXPECT_EQ(worker_of(status), "worker1");
    gate().get().set_value(3);
    EXPECT_EQ(held.wait(), 3);
    EXPECT_EQ(slow.rpc_sync<&Slow::quick>(), 1);
  }
  group.expect_empty();
}

int64_t countdown(const std::string& own_name, const std::string& other, int64_t depth) {
  return depth == 0 ? 0 : 1 + rpc_sync<&countdown>(other, other, own_name, depth - 1);
}
GRADWIRE_RPC(countdown)

TEST(Concurrency, FiftyNestedCallsNeedOneWorkerThread) {
  testing::Group group(2, with_threads(1));
  EXPECT_EQ(group[0]->rpc_sync<&countdown>("worker1", "worker1", "worker0", 50), 50);
  group.expect_empty();
}

Mutex& shared_mutex() {
  static auto* mutex = new Mutex;
  return *mutex;
}
int64_t nothing() { return 1; }
GRADWIRE_RPC(nothing)
// Waits for a call to `back`, while it holds a mutex that other handlers want.
int64_t wait_with_mutex(const std::string& back) {
  MutexLock lock(shared_mutex());
  return rpc_async<&nothing>(back).wait();
}
GRADWIRE_RPC(wait_with_mutex)
int64_t want_mutex() {
  MutexLock lock(shared_mutex());
  return 1;
}
GRADWIRE_RPC(want_mutex)

TEST(Concurrency, HandlerThatWaitsWithALockedMutexGoesOn) {
  for (int threads : {1, 2}) {
    testing::Group group(2, with_threads(threads));
    std::vector<Future<int64_t>> results;
    for (int i = 0; i < 10; ++i) {
      results.push_back(group[0]->rpc_async<&wait_with_mutex>("worker1", "worker1"));
      results.push_back(group[0]->rpc_async<&want_mutex>("worker1"));
      results.push_back(group[0]->rpc_async<&wait_with_mutex>("worker1", "worker0"));
    }
    for (const auto& result : results) EXPECT_EQ(result.wait(), 1);
    group.expect_empty();
  }
}

TEST(Concurrency, BoundOnWorkerThreadsIsAnErrorNotAHang) {
  testing::Group group(2, with_threads(1, 4));
  try {
    group[0]->rpc_sync<&countdown>("worker1", "worker1", "worker0", 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kResourceExhausted) << error.what();
  }
  group.expect_empty();
}

// A coroutine. Its parameters are references to values that only the call keeps alive.
Future<std::string> join_slowly(const std::string& a, const std::vector<std::string>& b) {
  std::string text = a;
  for (const std::string& part : b) {
    const int64_t one = co_await rpc_async<&nothing>("worker0");
    text += part + std::to_string(one);
    if (CallContext::current() == nullptr || CallContext::current()->caller().name != "worker0")
      text += "lost";
    if (Agent::current()->services().self().name != "worker1") text += "lost";
  }
  co_return text + a;
}
GRADWIRE_RPC(join_slowly)

TEST(Concurrency, CoroutineKeepsParametersAndStateAcrossAwaits) {
  testing::Group group(2, with_threads(1));
  const std::string long_text(100, 'x');
  std::vector<Future<std::string>> results;
  for (int i = 0; i < 20; ++i) {
    results.push_back(
        group[0]->rpc_async<&join_slowly>("worker1", long_text, std::vector<std::string>{"a", "b"}));
  }
  for (const auto& result : results) EXPECT_EQ(result.wait(), long_text + "a1b1" + long_text);
  group.expect_empty();
}

Future<int64_t> pending_result() { return gate().get().future(); }
GRADWIRE_RPC(pending_result)
Future<int64_t> empty_future() { return Future<int64_t>(); }
GRADWIRE_RPC(empty_future)
Future<int64_t> failing_later() {
  co_await rpc_async<&nothing>("worker0");
  throw std::runtime_error("failed after the first await");
}
GRADWIRE_RPC(failing_later)

TEST(Concurrency, HandlerThatReturnsAFutureFreesItsThread) {
  testing::Group group(2, with_threads(1, 2));
  (void)gate().renew();
  std::vector<Future<int64_t>> results;
  for (int i = 0; i < 20; ++i) results.push_back(group[0]->rpc_async<&pending_result>("worker1"));
  group[0]->rpc_sync<&open_gate>("worker1", 9);
  for (const auto& result : results) EXPECT_EQ(result.wait(), 9);
  group.expect_empty();
}

TEST(Concurrency, FuturesOfHandlersCarryTheirErrors) {
  testing::Group group(2);
  EXPECT_EQ(group[0]->rpc_async<&empty_future>("worker1").result().status().code(),
            absl::StatusCode::kInternal);
  const absl::Status late = group[0]->rpc_async<&failing_later>("worker1").result().status();
  EXPECT_EQ(late.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(late.message()), HasSubstr("failed after the first await"));
  group.expect_empty();
}

int64_t time_left_ms() {
  const absl::Duration left = CallContext::current()->deadline().left();
  return left == absl::InfiniteDuration() ? -1 : absl::ToInt64Milliseconds(left);
}
GRADWIRE_RPC(time_left_ms)
int64_t nested_time_left_ms(const std::string& to) { return rpc_sync<&time_left_ms>(to); }
GRADWIRE_RPC(nested_time_left_ms)

TEST(Concurrency, DeadlinesTravelToNestedCalls) {
  testing::Group group(2);
  const int64_t left = group[0]->rpc_sync<&nested_time_left_ms>(
      Destination("worker1").with_timeout(absl::Seconds(20)), "worker0");
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 20'000);
  EXPECT_EQ(group[0]->rpc_sync<&time_left_ms>(Destination("worker1").with_timeout(absl::InfiniteDuration())),
            -1);
}

// Completes when its call is cancelled.
Promise<void>& seen_cancelled() {
  static auto* promise = new Promise<void>;
  return *promise;
}
Future<int64_t> wait_for_cancel() {
  Promise<int64_t> answer;
  CallContext::current()->cancellation().on_cancelled([answer] {
    answer.set_value(7);  // Too late: the caller does not wait any more.
    seen_cancelled().set_value();
  });
  gate().get().set_value(1);
  return answer.future();
}
GRADWIRE_RPC(wait_for_cancel)

TEST(Concurrency, CancelReachesTheCallee) {
  testing::Group group(2);
  seen_cancelled() = Promise<void>();
  Future<int64_t> started = gate().renew();
  Future<int64_t> call = group[0]->rpc_async<&wait_for_cancel>("worker1");
  started.wait();
  call.cancel();
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(seen_cancelled().future().wait_for(absl::Seconds(30)));
  group.expect_empty();
}

// Has the result of the call that call_when_cancelled() makes.
Promise<int64_t>& called_when_cancelled() {
  static auto* promise = new Promise<int64_t>;
  return *promise;
}
Future<int64_t> call_when_cancelled(const std::string& to) {
  Promise<int64_t> answer;
  CallContext::current()->cancellation().on_cancelled([answer, to] {
    called_when_cancelled().set_value(rpc_sync<&nothing>(to));
    answer.set_value(0);
  });
  gate().get().set_value(1);
  return answer.future();
}
GRADWIRE_RPC(call_when_cancelled)

TEST(Concurrency, CallbackOfACancelledCallMayWaitForAnotherCall) {
  testing::Group group(3);
  called_when_cancelled() = Promise<int64_t>();
  Future<int64_t> started = gate().renew();
  Future<int64_t> call = group[0]->rpc_async<&call_when_cancelled>("worker1", std::string("worker2"));
  started.wait();
  call.cancel();
  ASSERT_TRUE(called_when_cancelled().future().wait_for(absl::Seconds(30)));
  EXPECT_EQ(called_when_cancelled().future().wait(), 1);
  EXPECT_EQ(group[0]->rpc_sync<&nothing>("worker1"), 1);
  group.expect_empty();
}

TEST(Concurrency, TimeoutNamesCallAndTimeAndLateAnswersAreCounted) {
  testing::Group group(2);
  seen_cancelled() = Promise<void>();
  (void)gate().renew();
  try {
    group[0]->rpc_sync<&wait_for_cancel>(Destination("worker1").with_timeout(absl::Milliseconds(50)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(error.worker(), "worker1");
    EXPECT_THAT(error.what(), HasSubstr("wait_for_cancel\""));
    EXPECT_THAT(error.what(), HasSubstr("worker1"));
    EXPECT_THAT(error.what(), HasSubstr("within 50ms"));
  }
  group.expect_empty();
  EXPECT_TRUE(eventually([&] { return group[0]->statistics().late_answers > 0; }, absl::Seconds(30)));
  EXPECT_EQ(group[0]->statistics().late_answers, 1u);
}

TEST(Concurrency, DeathOfTheCallerCancelsItsCalls) {
  testing::Group group(2);
  seen_cancelled() = Promise<void>();
  Future<int64_t> started = gate().renew();
  Future<int64_t> call = group[0]->rpc_async<&wait_for_cancel>("worker1");
  started.wait();
  group.kill(0);
  EXPECT_TRUE(seen_cancelled().future().wait_for(absl::Seconds(30)));
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kFailedPrecondition);
  group.expect_empty();
}

TEST(Concurrency, CallbacksMayCallAgain) {
  testing::Group group(2, with_threads(1));
  const std::shared_ptr<Agent>& agent = group[0];
  Future<int64_t> twice = agent->rpc_async<&nothing>("worker1").then(
      [agent](int64_t one) { return one + agent->rpc_sync<&nothing>("worker1"); });
  EXPECT_EQ(twice.wait(), 2);
  group.expect_empty();
}

// A value whose destructor makes a call.
struct Farewell {
  std::shared_ptr<int> armed;
  ~Farewell() {
    if (armed != nullptr && armed.use_count() == 1) {
      const int64_t value = rpc_sync<&nothing>("worker1");
      gate().get().set_value(value);
    }
  }
  Farewell() = default;
  Farewell(const Farewell&) = default;
  Farewell(Farewell&&) = default;
  Farewell& operator=(const Farewell&) = default;
  Farewell& operator=(Farewell&&) = default;
};

}  // namespace

template <>
struct Codec<Farewell> {
  static std::string type_name() { return "Farewell"; }
  static absl::Status encode(const Farewell&, Encoder&, proto::Value& out) {
    out.set_none(true);
    return absl::OkStatus();
  }
  static absl::StatusOr<Farewell> decode(const proto::Value&, Decoder&) {
    Farewell value;
    value.armed = std::make_shared<int>(1);
    return value;
  }
};

namespace {

Farewell make_farewell() { return Farewell(); }
GRADWIRE_RPC(make_farewell)

// A result that nobody reads is never made.
TEST(Concurrency, DestructorsOfResultsMayCall) {
  testing::Group group(2);
  AgentGuard guard(group[0]);
  Future<int64_t> called = gate().renew();
  (void)group[0]->rpc_async<&make_farewell>("worker1").then([](const Farewell&) {});
  EXPECT_TRUE(called.wait_for(absl::Seconds(30)));
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
