#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/match.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

// The lifetime of calls: deadlines through nested calls, cancellation and its reasons, late answers.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using transport::Fault;

int64_t left_of_call_ms() { return absl::ToInt64Milliseconds(CallContext::current()->deadline().left()); }
Future<int64_t> deepest_left_ms(const std::string& own_name, const std::string& other, int64_t depth) {
  if (depth == 0) co_return left_of_call_ms();
  // After an await, CallContext still names the call that this handler serves.
  (void)co_await rpc_async<&deepest_left_ms>(other, other, own_name, 0);
  const Destination unlimited = Destination(other).with_timeout(absl::InfiniteDuration());
  co_return co_await rpc_async<&deepest_left_ms>(unlimited, other, own_name, depth - 1);
}
GRADWIRE_RPC(deepest_left_ms)

TEST(CallLifetime, DeadlineTravelsThroughNestedCallsAndAwaits) {
  testing::Group group(2);
  const Destination to = Destination("worker1").with_timeout(absl::Seconds(20));
  const int64_t left = group[0]->rpc_sync<&deepest_left_ms>(to, "worker1", "worker0", 5);
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 20'000);
}

// State of a handler that waits until its call is cancelled.
struct Waiter {
  Promise<void> started;
  Promise<void> cancelled;  // Completes with the reason.
};
struct Waiters {
  Waiter inner;
  Waiter only;
};
Waiters& waiters() {
  static auto* instance = new Waiters;
  return *instance;
}
Future<int64_t> wait_until_cancelled(Waiter& waiter) {
  Promise<int64_t> answer;
  const CancellationToken token = CallContext::current()->cancellation();
  token.on_cancelled([answer, token, cancelled = waiter.cancelled] {
    cancelled.set_error(token.reason());
    answer.set_value(1);
  });
  waiter.started.set_value();
  return answer.future();
}
Future<int64_t> wait_inside() { return wait_until_cancelled(waiters().inner); }
GRADWIRE_RPC(wait_inside)
Future<int64_t> wait_alone() { return wait_until_cancelled(waiters().only); }
GRADWIRE_RPC(wait_alone)
int64_t call_wait_inside(const std::string& to) {
  return rpc_sync<&wait_inside>(Destination(to).with_timeout(absl::InfiniteDuration()));
}
GRADWIRE_RPC(call_wait_inside)

TEST(CallLifetime, NestedCallEndsWithTheOneThatItServes) {
  testing::Group group(3);
  waiters() = Waiters();
  const absl::Time start = absl::Now();
  // Long enough for both calls to begin.
  const Destination soon = Destination("worker1").with_timeout(absl::Seconds(3));
  EXPECT_EQ(group[0]->rpc_async<&call_wait_inside>(soon, "worker2").result().status().code(),
            absl::StatusCode::kDeadlineExceeded);
  // The innermost handler is cancelled, too, although its own call had no timeout.
  ASSERT_TRUE(waiters().inner.cancelled.future().wait_for(absl::Seconds(30)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  group.expect_empty();
}

void cut() {}
GRADWIRE_RPC(cut)
int64_t one() { return 1; }
GRADWIRE_RPC(one)

RpcBackendOptions with_faults(std::function<Fault::Kind(const proto::Envelope&)> decide) {
  RpcBackendOptions options;
  options.hooks = testing::outgoing_faults(std::move(decide));
  return options;
}
Fault::Kind cut_by_call(const proto::Envelope& envelope) {
  return absl::EndsWith(envelope.request().function(), "cut") ? Fault::Kind::kCut : Fault::Kind::kDeliver;
}

TEST(CallLifetime, EndOfTheConnectionFiresTheTokenAndFailsTheCall) {
  testing::Group group(2, with_faults(cut_by_call));
  waiters() = Waiters();
  Future<int64_t> call = group[0]->rpc_async<&wait_alone>("worker1");
  waiters().only.started.future().wait();
  EXPECT_EQ(group[0]->rpc_async<&cut>("worker1").result().code(), absl::StatusCode::kUnavailable);
  const absl::Status failed = call.result().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(worker_of(failed), "worker1");
  EXPECT_THAT(std::string(failed.message()), HasSubstr("wait_alone"));
  const absl::Status reason = waiters().only.cancelled.future().result();
  EXPECT_EQ(reason.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(reason.message()), HasSubstr("worker0"));
  // Both workers are alive: the next call connects again.
  EXPECT_EQ(group[0]->rpc_sync<&one>("worker1"), 1);
  group.expect_empty();
}

// The callee alone notices that the time is over, because no Cancel of the caller arrives.
TEST(CallLifetime, DeadlineFiresTheTokenOfARunningCall) {
  testing::Group group(2, with_faults([](const proto::Envelope& envelope) {
                         return envelope.has_cancel() ? Fault::Kind::kDrop : Fault::Kind::kDeliver;
                       }));
  waiters() = Waiters();
  // Expires later, so that its alarm must be replaced by an earlier one.
  Future<int64_t> later =
      group[0]->rpc_async<&wait_inside>(Destination("worker1").with_timeout(absl::Minutes(5)));
  waiters().inner.started.future().wait();
  Future<int64_t> call =
      group[0]->rpc_async<&wait_alone>(Destination("worker1").with_timeout(absl::Milliseconds(200)));
  ASSERT_TRUE(waiters().only.cancelled.future().wait_for(absl::Seconds(30)));
  const absl::Status reason = waiters().only.cancelled.future().result();
  EXPECT_EQ(reason.code(), absl::StatusCode::kDeadlineExceeded) << reason;
  EXPECT_THAT(std::string(reason.message()), HasSubstr("wait_alone"));
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(waiters().inner.cancelled.future().done());
  // The alarms after that are those of the calls that are left.
  waiters().only = Waiter();
  Future<int64_t> next =
      group[0]->rpc_async<&wait_alone>(Destination("worker1").with_timeout(absl::Milliseconds(200)));
  EXPECT_TRUE(waiters().only.cancelled.future().wait_for(absl::Seconds(30)));
  EXPECT_EQ(next.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  group.kill(0);
  EXPECT_FALSE(later.result().ok());
}

Promise<int64_t>& held_turn() {
  static auto* instance = new Promise<int64_t>;
  return *instance;
}
struct Queue {
  Future<int64_t> hold() { return held_turn().future(); }
  Future<int64_t> wait() { return wait_until_cancelled(waiters().only); }
  int64_t count() { return ++counted; }
  int64_t counted = 0;
};
GRADWIRE_RPC_SERIAL_CLASS(Queue)
GRADWIRE_RPC_METHOD(Queue, hold)
GRADWIRE_RPC_METHOD(Queue, wait)
GRADWIRE_RPC_METHOD(Queue, count)

TEST(CallLifetime, CancelledCallThatWaitsForItsTurnNeverRuns) {
  testing::Group group(2);
  waiters() = Waiters();
  RRef<Queue> queue = group[0]->remote<Queue>("worker1");
  Future<int64_t> busy = queue.rpc_async<&Queue::wait>();
  waiters().only.started.future().wait();
  Future<int64_t> unwanted = queue.rpc_async<&Queue::count>();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[1]->tables().served_calls < 2 && absl::Now() < deadline) std::this_thread::yield();
  unwanted.cancel();
  busy.cancel();
  EXPECT_EQ(queue.rpc_sync<&Queue::count>(), 1);
  queue = RRef<Queue>();
  group.expect_empty();
}

// The callee decides alone, because no Cancel of the caller arrives.
TEST(CallLifetime, ExpiredCallThatWaitsForItsTurnNeverRuns) {
  testing::Group group(2, with_faults([](const proto::Envelope& envelope) {
                         return envelope.has_cancel() ? Fault::Kind::kDrop : Fault::Kind::kDeliver;
                       }));
  held_turn() = Promise<int64_t>();
  RRef<Queue> queue = group[0]->remote<Queue>("worker1");
  Future<int64_t> busy = queue.rpc_async<&Queue::hold>();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[1]->tables().served_calls < 1 && absl::Now() < deadline) std::this_thread::yield();
  Future<int64_t> late = queue.with_timeout(absl::Seconds(1)).rpc_async<&Queue::count>();
  EXPECT_EQ(late.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  // The callee measures the time from the arrival of the call, so the call may expire later there than at the
  // caller. The call has arrived when the call behind it is answered.
  EXPECT_EQ(group[0]->rpc_sync<&one>("worker1"), 1);
  while (group[1]->tables().served_calls > 1 && absl::Now() < deadline) std::this_thread::yield();
  held_turn().set_value(5);
  EXPECT_EQ(busy.wait(), 5);
  EXPECT_EQ(queue.rpc_sync<&Queue::count>(), 1);
  queue = RRef<Queue>();
  group.expect_empty();
}

TEST(CallLifetime, CancelledCallThatWaitsForItsObjectEndsAtOnce) {
  testing::Group group(2, with_faults([](const proto::Envelope& envelope) {
                         return envelope.request().has_constructor() ? Fault::Kind::kDrop
                                                                     : Fault::Kind::kDeliver;
                       }));
  const RRef<Queue> never = group[0]->remote<Queue>("worker1");
  Future<int64_t> call = never.rpc_async<&Queue::count>();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[1]->tables().served_calls == 0 && absl::Now() < deadline) std::this_thread::yield();
  call.cancel();
  // Long before the wait for the creation ends.
  while (group[1]->tables().served_calls > 0 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(group[1]->tables().served_calls, 0u);
  // A graceful shutdown would wait for the creation.
  group.kill(0);
}

// The caller has cancelled nothing, so its call must not end with Cancelled.
TEST(CallLifetime, CallThatWaitsForItsObjectIsUnavailableWhenTheCalleeShutsDown) {
  testing::Group group(2, with_faults([](const proto::Envelope& envelope) {
                         return envelope.request().has_constructor() ? Fault::Kind::kDrop
                                                                     : Fault::Kind::kDeliver;
                       }));
  const RRef<Queue> never = group[0]->remote<Queue>("worker1");
  Future<int64_t> call = never.rpc_async<&Queue::count>();
  EXPECT_TRUE(eventually([&] { return group[1]->tables().served_calls == 1; }));
  group.kill(1);
  const absl::Status status = call.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker \"worker1\" has"));
  EXPECT_EQ(worker_of(status), "worker1");
}

TEST(CallLifetime, TokenOfAHandlerSaysThatItsWorkerShutsDown) {
  testing::Group group(2);
  waiters() = Waiters();
  Future<int64_t> call = group[0]->rpc_async<&wait_alone>("worker1");
  waiters().only.started.future().wait();
  group.kill(1);
  const absl::Status reason = waiters().only.cancelled.future().result();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(reason.message()), HasSubstr("worker \"worker1\" has shut down"));
  // The answer of the handler and the end of the connection race.
  (void)call.result();
}

std::vector<RRef<int64_t>> give_references() { return {RRef<int64_t>(1), RRef<int64_t>(2)}; }
GRADWIRE_RPC(give_references)

TEST(CallLifetime, SecondAnswerIsDroppedCountedAndGivesItsReferencesBack) {
  testing::Group group(2, with_faults([](const proto::Envelope& envelope) {
                         return envelope.response().result().values_size() > 0 ? Fault::Kind::kDuplicate
                                                                               : Fault::Kind::kDeliver;
                       }));
  for (uint64_t round = 1; round <= 5; ++round) {
    {
      const std::vector<RRef<int64_t>> given = group[0]->rpc_sync<&give_references>("worker1");
      EXPECT_EQ(given.size(), 2u);
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (group[0]->statistics().late_answers < round && absl::Now() < deadline) std::this_thread::yield();
    EXPECT_EQ(group[0]->statistics().late_answers, round);
  }
  EXPECT_EQ(group[0]->statistics().calls_failed, 0u);
  group.expect_empty();
}

TEST(CallLifetime, AnswerToACancelledCallIsDroppedAndCounted) {
  testing::Group group(2);
  waiters() = Waiters();
  Future<int64_t> call = group[0]->rpc_async<&wait_alone>("worker1");
  waiters().only.started.future().wait();
  call.cancel();
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kCancelled);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[0]->statistics().late_answers == 0 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(group[0]->statistics().late_answers, 1u);
  group.expect_empty();
}

// Sends a repeatable request that an honest agent never sends.
absl::Status raw_repeatable(Agent& agent, absl::Duration timeout,
                            const std::function<void(proto::Request&)>& fill) {
  OutgoingCall call(agent.caller(), Destination("worker1").with_timeout(timeout), "raw");
  call.request().set_function(callee_of_function<&one>->name);
  call.request().set_signature(callee_of_function<&one>->signature_hash);
  call.request().set_request_id(7);
  fill(call.request());
  Promise<void> done;
  call.send([done](absl::StatusOr<IncomingPayload> in) { done.set_result(in.status()); });
  return done.future().result();
}

TEST(CallLifetime, RequestsThatCannotBeRepeatedAreRefused) {
  testing::Group group(2);
  const absl::Duration timeout = absl::Seconds(30);
  for (const std::function<void(proto::Request&)>& fill : std::vector<std::function<void(proto::Request&)>>{
           [](proto::Request& request) { request.set_order_key(1); },
           [](proto::Request& request) { request.mutable_result_rref()->set_counter(1); },
           [](proto::Request& request) { request.mutable_arguments()->add_references(); },
           [](proto::Request& request) { request.mutable_arguments()->mutable_graph(); }}) {
    const absl::Status status = raw_repeatable(*group[0], timeout, fill);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  // The request itself says that its answer is not wanted (answered_below), so it is dropped.
  EXPECT_EQ(raw_repeatable(*group[0], absl::Milliseconds(100),
                           [](proto::Request& request) { request.set_answered_below(1'000'000); })
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(group[0]->rpc_sync<&one>("worker1"), 1);
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
