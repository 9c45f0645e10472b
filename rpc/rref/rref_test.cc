#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

std::atomic<int> living{0};

// Counts its live instances in the process.
struct Counter {
  explicit Counter(int64_t start) : value(start) {
    if (start < 0) throw std::invalid_argument("counts from zero");
    ++living;
  }
  ~Counter() { --living; }
  int64_t increment(int64_t by) { return value += by; }
  std::atomic<int64_t> value;
};
GRADWIRE_RPC_CLASS(Counter, int64_t)
GRADWIRE_RPC_METHOD(Counter, increment)

// Destructors run on executors, shortly after the entry was removed from the table.
void expect_living(int expected) {
  eventually([&] { return living == expected; }, absl::Seconds(30));
  EXPECT_EQ(living, expected);
}

int64_t identity(int64_t value) { return value; }
GRADWIRE_RPC(identity)
int64_t fetch(const RRef<int64_t>& rref) { return rref.to_here(); }
GRADWIRE_RPC(fetch)
int64_t use(const RRef<Counter>& counter, int64_t by) { return counter.rpc_sync<&Counter::increment>(by); }
GRADWIRE_RPC(use)
RRef<Counter> pass(RRef<Counter> counter) { return counter; }
GRADWIRE_RPC(pass)
bool is_local(const RRef<Counter>& counter) { return counter.is_owner() && counter.local_value().value >= 0; }
GRADWIRE_RPC(is_local)
using Nested = std::map<std::string, std::vector<std::pair<int64_t, std::optional<RRef<Counter>>>>>;
int64_t use_all(const Nested& nested) {
  int64_t sum = 0;
  for (const auto& [name, list] : nested) {
    for (const auto& [by, counter] : list) {
      if (counter) sum += counter->rpc_sync<&Counter::increment>(by);
    }
  }
  return sum;
}
GRADWIRE_RPC(use_all)

TEST(RRef, ValueComesHere) {
  testing::Group group(2);
  {
    RRef<int64_t> rref = group[0]->remote<&identity>("worker1", 42);
    EXPECT_EQ(rref.to_here(), 42);
    EXPECT_EQ(rref.owner(), (WorkerInfo{"worker1", 1}));
    rref.confirmed().wait();
    EXPECT_TRUE(rref.confirmed_by_owner());
  }
  group.expect_empty();
}

TEST(RRef, LocalValueIsTheOwnersAlone) {
  testing::Group group(2);
  {
    RRef<Counter> there = group[0]->remote<Counter>("worker1", 3);
    EXPECT_EQ(status_of([&] { there.local_value(); }).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(group[0]->rpc_sync<&is_local>("worker1", there));
    AgentGuard guard(group[0]);
    RRef<int64_t> here(5);
    EXPECT_TRUE(here.is_owner());
    EXPECT_TRUE(here.confirmed_by_owner());
    here.local_value() = 6;
    EXPECT_EQ(here.to_here(), 6);
    EXPECT_EQ(group[0]->rpc_sync<&fetch>("worker1", here), 6);
  }
  group.expect_empty();
}

TEST(RRef, RemoteToOneselfIsOwnedHere) {
  testing::Group group(1);
  const int before = living;
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker0", 3);
    EXPECT_TRUE(counter.is_owner());
    EXPECT_TRUE(counter.confirmed_by_owner());
    EXPECT_EQ(counter.local_value().value, 3);
    EXPECT_EQ(counter.rpc_sync<&Counter::increment>(1), 4);
    EXPECT_EQ(group[0]->rpc_sync<&use>("worker0", counter, 1), 5);
    EXPECT_EQ(group[0]->rpc_sync<&pass>("worker0", counter).local_value().value, 5);
    RRef<Counter> failed = group[0]->remote<Counter>("worker0", -1);
    const absl::Status status = status_of([&] { failed.local_value(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
    EXPECT_THAT(status.ToString(), HasSubstr("counts from zero"));
  }
  group.expect_empty();
  expect_living(before);
}

TEST(RRef, TravelsToOwnerAndThirdWorkersAndBack) {
  testing::Group group(3);
  const int before = living;
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1", 0);
    EXPECT_EQ(group[0]->rpc_sync<&use>("worker1", counter, 1), 1);
    EXPECT_EQ(group[0]->rpc_sync<&use>("worker2", counter, 1), 2);
    EXPECT_EQ(group[0]->rpc_sync<&pass>("worker1", counter).rpc_sync<&Counter::increment>(1), 3);
    RRef<Counter> back = group[0]->rpc_sync<&pass>("worker2", counter);
    EXPECT_EQ(back.rpc_sync<&Counter::increment>(1), 4);
    EXPECT_EQ(back.owner_name(), "worker1");
    Nested nested;
    nested["a"].emplace_back(10, counter);
    nested["a"].emplace_back(10, std::nullopt);
    nested["b"].emplace_back(20, back);
    EXPECT_EQ(group[0]->rpc_sync<&use_all>("worker2", nested), 14 + 34);
  }
  group.expect_empty();
  expect_living(before);
}

struct Keeper {
  void keep(RRef<Counter> counter) { kept = std::move(counter); }
  int64_t count() { return kept->rpc_sync<&Counter::increment>(1); }
  void drop() { kept.reset(); }
  std::optional<RRef<Counter>> kept;
};
GRADWIRE_RPC_SERIAL_CLASS(Keeper)
GRADWIRE_RPC_METHOD(Keeper, keep)
GRADWIRE_RPC_METHOD(Keeper, count)
GRADWIRE_RPC_METHOD(Keeper, drop)

TEST(RRef, SharedValueOutlivesItsSharersHandle) {
  testing::Group group(3);
  const int before = living;
  {
    RRef<Keeper> keeper = group[0]->remote<Keeper>("worker2");
    for (int round = 0; round < 20; ++round) {
      Future<void> kept;
      {
        RRef<Counter> counter = group[0]->remote<Counter>("worker1", 0);
        kept = keeper.rpc_async<&Keeper::keep>(counter);
      }
      kept.wait();
      EXPECT_EQ(keeper.rpc_sync<&Keeper::count>(), 1);
    }
    keeper.rpc_sync<&Keeper::drop>();
  }
  group.expect_empty();
  expect_living(before);
}

TEST(RRef, FailedConstructorWakesEveryWaiterWithItsError) {
  testing::Group group(2);
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1", -1);
    const absl::Status status = status_of([&] { counter.rpc_sync<&Counter::increment>(1); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
    EXPECT_THAT(status.ToString(), HasSubstr("counts from zero"));
    RRef<int64_t> result = counter.remote<&Counter::increment>(1);
    std::vector<Future<int64_t>> waiters;
    for (int i = 0; i < 10; ++i) waiters.push_back(result.to_here_async());
    for (const auto& waiter : waiters) {
      EXPECT_EQ(waiter.result().status().code(), absl::StatusCode::kUnknown) << waiter.result().status();
      EXPECT_THAT(std::string(waiter.result().status().message()), HasSubstr("counts from zero"));
    }
  }
  group.expect_empty();
}

struct Gate {
  Mutex mutex;
  Promise<void> promise ABSL_GUARDED_BY(mutex);
  Promise<void> renew() {
    MutexLock lock(mutex);
    return promise = Promise<void>();
  }
  Promise<void> get() {
    MutexLock lock(mutex);
    return promise;
  }
};
Gate& gate() {
  static auto* instance = new Gate;
  return *instance;
}
int64_t after_gate() {
  gate().get().future().wait();
  return 1;
}
GRADWIRE_RPC(after_gate)
RRef<Counter> counter_after_gate() {
  gate().get().future().wait();
  return RRef<Counter>(*Agent::current(), std::make_shared<Counter>(1));
}
GRADWIRE_RPC(counter_after_gate)

TEST(RRef, TimedOutRemoteFreesWhatComesLate) {
  testing::Group group(2);
  Promise<void> open = gate().renew();
  {
    RRef<int64_t> rref =
        group[0]->remote<&after_gate>(Destination("worker1").with_timeout(absl::Milliseconds(500)));
    EXPECT_EQ(status_of([&] { rref.to_here(); }).code(), absl::StatusCode::kDeadlineExceeded);
  }
  open.set_value();
  group.expect_empty();
}

TEST(RRef, DeletesAreForgottenWhenNothingOlderCanCome) {
  testing::Group group(2);
  // Both connect at once, so that there may be two connections.
  Future<int64_t> there = group[0]->rpc_async<&identity>("worker1", 1);
  Future<int64_t> back = group[1]->rpc_async<&identity>("worker0", 1);
  EXPECT_EQ(there.wait() + back.wait(), 2);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  do {
    RRef<int64_t> rref = group[0]->remote<&identity>("worker1", 42);
    EXPECT_EQ(rref.to_here(), 42);
    rref = RRef<int64_t>();
    group.expect_empty();
  } while (group[1]->tables().remembered_deletes > 0 && absl::Now() < deadline);
  EXPECT_EQ(group[1]->tables().remembered_deletes, 0u);
}

// Drops every request that would construct a value.
RpcBackendOptions without_constructors() {
  RpcBackendOptions options;
  options.hooks = testing::outgoing_faults([](const proto::Envelope& envelope) {
    return envelope.request().has_constructor() ? transport::Fault::Kind::kDrop
                                                : transport::Fault::Kind::kDeliver;
  });
  return options;
}

TEST(RRef, CreationThatNeverArrivesWakesThoseWhoWaitAnywhere) {
  testing::Group group(3, without_constructors());
  const absl::Time start = absl::Now();
  Future<int64_t> waits_elsewhere;
  {
    RRef<Counter> counter =
        group[0]->remote<Counter>(Destination("worker1").with_timeout(absl::Seconds(1)), int64_t{1});
    waits_elsewhere = group[0]->rpc_async<&use>("worker2", counter, int64_t{1});
    EXPECT_EQ(status_of([&] { counter.rpc_sync<&Counter::increment>(1); }).code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  // Worker 2 asks worker 1, which does not know the value. The creator's message that it gave up ends the
  // wait.
  EXPECT_EQ(waits_elsewhere.result().status().code(), absl::StatusCode::kAborted)
      << waits_elsewhere.result().status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  group.expect_empty();
}

// Sending may resolve a name and connect, but a handle may be destroyed where blocking is not allowed.
TEST(RRef, DroppedHandleSendsNothingOnItsThread) {
  Mutex mutex;
  std::vector<std::thread::id> senders;
  RpcBackendOptions options;
  options.hooks = testing::outgoing_faults([&](const proto::Envelope& envelope) {
    if (envelope.has_request()) {
      MutexLock lock(mutex);
      senders.push_back(std::this_thread::get_id());
    }
    return transport::Fault::Kind::kDeliver;
  });
  testing::Group group(2, options);
  RRef<int64_t> rref = group[0]->remote<&identity>("worker1", 42);
  EXPECT_EQ(rref.to_here(), 42);
  {
    MutexLock lock(mutex);
    senders.clear();
  }
  rref = RRef<int64_t>();
  group.expect_empty();
  MutexLock lock(mutex);
  EXPECT_FALSE(senders.empty());
  EXPECT_EQ(std::count(senders.begin(), senders.end(), std::this_thread::get_id()), 0);
}

TEST(RRef, TablesOfALostCreationAreEmptyAtOnce) {
  testing::Group group(2, without_constructors());
  Future<int64_t> waits_there;
  absl::Time ended;
  {
    RRef<Counter> counter =
        group[0]->remote<Counter>(Destination("worker1").with_timeout(absl::Seconds(1)), int64_t{1});
    waits_there = counter.rpc_async<&Counter::increment>(1);
    EXPECT_EQ(counter.confirmed().result().code(), absl::StatusCode::kDeadlineExceeded);
    ended = absl::Now();
  }
  EXPECT_FALSE(waits_there.result().ok());
  // Nothing waits there for a request that will not arrive (kGrace is ten seconds, of which nine are left),
  // or for messages that were sent before its Delete.
  constexpr absl::Duration kLessThanGrace = absl::Seconds(8);
  group.expect_empty();
  EXPECT_TRUE(eventually([&] { return group[1]->tables().remembered_deletes == 0; }, kLessThanGrace));
  EXPECT_LT(absl::Now() - ended, kLessThanGrace);
}

TEST(RRef, LateAnswerGivesItsReferencesBack) {
  testing::Group group(2);
  const int before = living;
  Promise<void> open = gate().renew();
  EXPECT_EQ(
      status_of([&] {
        group[0]->rpc_sync<&counter_after_gate>(Destination("worker1").with_timeout(absl::Milliseconds(30)));
      }).code(),
      absl::StatusCode::kDeadlineExceeded);
  open.set_value();
  group.expect_empty();
  expect_living(before);
}

TEST(RRef, MethodWaitsForTheObjectToBeMade) {
  testing::Group group(3);
  Promise<void> open = gate().renew();
  {
    RRef<int64_t> rref = group[0]->remote<&after_gate>("worker1");
    Future<int64_t> elsewhere = group[0]->rpc_async<&fetch>("worker2", rref);
    Future<int64_t> here = rref.to_here_async();
    EXPECT_EQ(status_of([&] { rref.to_here(absl::Milliseconds(20)); }).code(),
              absl::StatusCode::kDeadlineExceeded);
    open.set_value();
    EXPECT_EQ(here.wait() + elsewhere.wait(), 2);
  }
  group.expect_empty();
}

TEST(RRef, FailedCallGivesItsReferencesBack) {
  testing::Group group(2);
  const int before = living;
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1", 0);
    EXPECT_EQ(status_of([&] { group[0]->rpc_sync<&use>("nobody", counter, 1); }).code(),
              absl::StatusCode::kNotFound);
    EXPECT_EQ(status_of([&] { group[0]->remote<&pass>("worker1", RRef<Counter>()); }).code(),
              absl::StatusCode::kInvalidArgument);
  }
  group.expect_empty();
  expect_living(before);
}

TEST(RRef, DeadOwnersHandlesFailAtOnce) {
  testing::Group group(3);
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1", 0);
    counter.confirmed().wait();
    RRef<Keeper> keeper = group[0]->remote<Keeper>("worker2");
    keeper.rpc_sync<&Keeper::keep>(counter);
    group.kill(1);
    const absl::Time start = absl::Now();
    // The first call may find the connection closing before the goodbye was read.
    const absl::Status status = status_of([&] { counter.rpc_sync<&Counter::increment>(1); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.ToString(), HasSubstr("worker1"));
    // The handle can still be sent to another worker, but it cannot be used there.
    EXPECT_EQ(status_of([&] { group[0]->rpc_sync<&use>("worker2", counter, 1); }).code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(status_of([&] { keeper.rpc_sync<&Keeper::count>(); }).code(), absl::StatusCode::kUnavailable);
    EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  }
  group.expect_empty();
}

TEST(RRef, DeadHoldersForksAreFreed) {
  testing::Group group(2);
  const int before = living;
  RRef<Counter> counter = group[0]->remote<Counter>("worker1", 0);
  counter.rpc_sync<&Counter::increment>(1);
  EXPECT_EQ(living, before + 1);
  group.kill(0);
  group.expect_empty();
  expect_living(before);
  EXPECT_EQ(status_of([&] { counter.rpc_sync<&Counter::increment>(1); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(RRef, HandlesOutliveTheirAgent) {
  RRef<Counter> there;
  RRef<int64_t> here;
  {
    testing::Group group(2);
    there = group[0]->remote<Counter>("worker1", 0);
    AgentGuard guard(group[0]);
    here = RRef<int64_t>(5);
    there.confirmed().wait();
  }
  EXPECT_EQ(status_of([&] { there.rpc_sync<&Counter::increment>(1); }).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_of([&] { here.to_here(); }).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_of([&] { here.local_value(); }).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RRef, ManyThreadsShareAndDropHandles) {
  testing::Group group(3);
  const int before = living;
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1", 0);
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        RRef<Counter> mine = counter;
        for (int i = 0; i < 20; ++i) {
          mine = group[0]->rpc_sync<&pass>(static_cast<int32_t>((t + i) % 3), mine);
          EXPECT_GT(mine.rpc_sync<&Counter::increment>(1), 0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(counter.rpc_sync<&Counter::increment>(0), 120);
  }
  group.expect_empty();
  expect_living(before);
}

}  // namespace
}  // namespace gradwire::rpc
