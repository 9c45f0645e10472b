#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

// Calls of idempotent functions outlive their connection, and run once.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using transport::Fault;

// Counts how often a handler has run with each argument.
class Runs {
 public:
  void add(int64_t value) {
    MutexLock lock(mutex_);
    ++counts_[value];
  }
  int of(int64_t value) {
    MutexLock lock(mutex_);
    return counts_[value];
  }
  void clear() {
    MutexLock lock(mutex_);
    counts_.clear();
  }

 private:
  Mutex mutex_;
  std::map<int64_t, int> counts_ ABSL_GUARDED_BY(mutex_);
};
Runs& runs() {
  static auto* instance = new Runs;
  return *instance;
}

int64_t count_and_double(int64_t value) {
  runs().add(value);
  return 2 * value;
}
GRADWIRE_RPC_IDEMPOTENT(count_and_double)
int64_t increment(int64_t value) {
  runs().add(value);
  return value + 1;
}
GRADWIRE_RPC(increment)
std::string repeat(const std::string& text) { return text + text; }
GRADWIRE_RPC_IDEMPOTENT(repeat)
int64_t fail(int64_t value) {
  runs().add(value);
  throw std::runtime_error("on purpose");
}
GRADWIRE_RPC_IDEMPOTENT(fail)
int64_t through(const RRef<int64_t>& value) { return value.to_here(); }
GRADWIRE_RPC_IDEMPOTENT(through)
std::vector<RRef<int64_t>> make_references() { return {RRef<int64_t>(5)}; }
GRADWIRE_RPC_IDEMPOTENT(make_references)
// A call that has no other purpose than to break the connection, if the test has arranged that.
void break_connection() {}
GRADWIRE_RPC(break_connection)

struct Table {
  int64_t look_up(int64_t key) {
    runs().add(key);
    return key * key;
  }
};
GRADWIRE_RPC_CLASS(Table)
GRADWIRE_RPC_IDEMPOTENT_METHOD(Table, look_up)

// Returns the remaining time of the call; -1 if the call has no deadline.
int64_t left_ms(int64_t value) {
  runs().add(value);
  const absl::Duration left = CallContext::current()->deadline().left();
  return left == absl::InfiniteDuration() ? -1 : absl::ToInt64Milliseconds(left);
}
GRADWIRE_RPC_IDEMPOTENT(left_ms)

// State of a handler that the test holds.
struct Held {
  Promise<int64_t> answer;
  Promise<void> started;
  Promise<void> cancelled;
};
Held& held() {
  static auto* instance = new Held;
  return *instance;
}
Future<int64_t> hold(int64_t value) {
  runs().add(value);
  CallContext::current()->cancellation().on_cancelled(
      [cancelled = held().cancelled] { cancelled.set_value(); });
  held().started.set_value();
  return held().answer.future();
}
GRADWIRE_RPC_IDEMPOTENT(hold)

// These describe a message to the functions that decide about faults.
bool calls(const proto::Envelope& envelope, const std::string& function) {
  return absl::StrContains(envelope.request().function(), function);
}
bool answers_a_call(const proto::Envelope& envelope) {
  return envelope.has_response() && envelope.response().body().empty() &&
         envelope.response().result().values_size() > 0;
}

// Parameterised by the name of the transport.
class Retry : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    runs().clear();
    held() = Held();
  }

  // Starts agents whose outgoing messages suffer the faults that `decide` returns.
  RpcBackendOptions with(std::function<Fault::Kind(const proto::Envelope&)> decide) {
    RpcBackendOptions options;
    options.transports = {GetParam()};
    options.hooks = testing::outgoing_faults(std::move(decide));
    return options;
  }
  // Cuts the connection at each of the first `times` messages that `which` selects.
  static std::function<Fault::Kind(const proto::Envelope&)> cut_first(
      int times, std::function<bool(const proto::Envelope&)> which) {
    return [left = std::make_shared<std::atomic<int>>(times),
            which = std::move(which)](const proto::Envelope& envelope) {
      return which(envelope) && left->fetch_sub(1) > 0 ? Fault::Kind::kCut : Fault::Kind::kDeliver;
    };
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Retry, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Retry, LostRequestIsSentAgain) {
  testing::Group group(
      2, with(cut_first(3, [](const proto::Envelope& m) { return calls(m, "count_and_double"); })));
  EXPECT_EQ(group[0]->rpc_sync<&count_and_double>("worker1", 21), 42);
  EXPECT_EQ(runs().of(21), 1);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 3u);
  EXPECT_EQ(group[0]->statistics().calls_failed, 0u);
  group.expect_empty();
}

TEST_P(Retry, LostAnswerIsGivenAgainWithoutRunningTwice) {
  testing::Group group(2, with(cut_first(2, answers_a_call)));
  EXPECT_EQ(group[0]->rpc_sync<&count_and_double>("worker1", 21), 42);
  EXPECT_EQ(runs().of(21), 1);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 2u);
  const std::string large(100'000, 'x');
  EXPECT_EQ(group[0]->rpc_sync<&repeat>("worker1", large), large + large);
  group.expect_empty();
}

TEST_P(Retry, LostErrorIsGivenAgain) {
  testing::Group group(
      2, with(cut_first(1, [](const proto::Envelope& m) { return m.response().has_status(); })));
  EXPECT_EQ(group[0]->rpc_async<&fail>("worker1", 3).result().status().code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(runs().of(3), 1);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 1u);
  group.expect_empty();
}

TEST_P(Retry, RunningCallGoesOnAndAnswersTheNewConnection) {
  testing::Group group(
      2, with(cut_first(1, [](const proto::Envelope& m) { return calls(m, "break_connection"); })));
  Future<int64_t> call = group[0]->rpc_async<&hold>("worker1", 1);
  held().started.future().wait();
  EXPECT_EQ(group[0]->rpc_async<&break_connection>("worker1").result().code(),
            absl::StatusCode::kUnavailable);
  // This call follows the repetition on the same connection.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[0]->statistics().calls_repeated == 0 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(group[0]->rpc_sync<&count_and_double>("worker1", 2), 4);
  held().answer.set_value(7);
  EXPECT_EQ(call.wait(), 7);
  EXPECT_EQ(runs().of(1), 1);
  EXPECT_FALSE(held().cancelled.future().done());
  group.expect_empty();
}

TEST_P(Retry, RepeatedAttemptHasWhatIsLeftOfTheCallsTime) {
  RpcBackendOptions options =
      with(cut_first(1, [](const proto::Envelope& m) { return calls(m, "left_ms"); }));
  options.retry.first_backoff = absl::Seconds(1);
  options.retry.max_backoff = absl::Seconds(1);
  testing::Group group(2, options);
  const Destination to = Destination("worker1").with_timeout(absl::Seconds(600));
  const int64_t left = group[0]->rpc_sync<&left_ms>(to, 1);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 1u);
  EXPECT_GT(left, 0);
  // Less than the first attempt had: the pause before the second attempt counts.
  EXPECT_LE(left, 599'500);
}

// Two connections break one after the other. Each attempt belongs to the connection on which it was sent, and
// the answer is sent on the last one.
TEST_P(Retry, CallFollowsItsConnectionsOneAfterTheOther) {
  testing::Group group(2, with([](const proto::Envelope& m) {
                         return calls(m, "break_connection") ? Fault::Kind::kCut : Fault::Kind::kDeliver;
                       }));
  Future<int64_t> call = group[0]->rpc_async<&hold>("worker1", 1);
  held().started.future().wait();
  // A connection may be cut before the call is repeated on it. Then one repetition follows several cuts.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[0]->statistics().calls_repeated < 3 && absl::Now() < deadline) {
    EXPECT_EQ(group[0]->rpc_async<&break_connection>("worker1").result().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(group[0]->rpc_sync<&count_and_double>("worker1", 2), 4);
  }
  EXPECT_GE(group[0]->statistics().calls_repeated, 3u);
  held().answer.set_value(7);
  EXPECT_EQ(call.wait(), 7);
  EXPECT_EQ(runs().of(1), 1);
  group.expect_empty();
}

TEST_P(Retry, MethodsOfReferencedObjectsAreRepeated) {
  testing::Group group(2,
                       with(cut_first(1, [](const proto::Envelope& m) { return m.request().has_method(); })));
  const RRef<Table> table = group[0]->remote<Table>("worker1");
  table.confirmed().wait();
  EXPECT_EQ(table.rpc_sync<&Table::look_up>(9), 81);
  EXPECT_EQ(runs().of(9), 1);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 1u);
}

TEST_P(Retry, OtherCallsFailWithUnavailable) {
  testing::Group group(2, with([](const proto::Envelope& m) {
                         const proto::Request request = m.request();
                         return request.has_function() && !absl::StrContains(request.function(), "make_ref")
                                    ? Fault::Kind::kCut
                                    : Fault::Kind::kDeliver;
                       }));
  const absl::StatusCode unavailable = absl::StatusCode::kUnavailable;
  // In order: a call that is not idempotent, is ordered, leaves its result at the callee, or carries a
  // reference.
  EXPECT_EQ(group[0]->rpc_async<&increment>("worker1", 1).result().status().code(), unavailable);
  EXPECT_EQ(
      group[0]->rpc_async<&count_and_double>(Destination("worker1").ordered(), 1).result().status().code(),
      unavailable);
  EXPECT_EQ(group[0]->remote<&count_and_double>("worker1", 1).to_here_async().result().status().code(),
            unavailable);
  {
    AgentGuard guard(group[0]);
    const RRef<int64_t> value(5);
    EXPECT_EQ(group[0]->rpc_async<&through>("worker1", value).result().status().code(), unavailable);
  }
  EXPECT_EQ(runs().of(1), 0);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 0u);
}

TEST_P(Retry, AnswerWithReferencesIsNotGivenAgain) {
  testing::Group group(2, with(cut_first(1, [](const proto::Envelope& m) {
                         return m.response().result().references_size() > 0;
                       })));
  const absl::Status lost = group[0]->rpc_async<&make_references>("worker1").result().status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("cannot be sent again"));
  EXPECT_EQ(group[0]->rpc_sync<&make_references>("worker1").at(0).to_here(), 5);
}

TEST_P(Retry, AttemptsAreBounded) {
  RpcBackendOptions options =
      with(cut_first(1'000, [](const proto::Envelope& m) { return calls(m, "count_and_double"); }));
  options.retry.max_attempts = 3;
  testing::Group group(2, options);
  const absl::Status status = group[0]->rpc_async<&count_and_double>("worker1", 1).result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(worker_of(status), "worker1");
  EXPECT_THAT(std::string(status.message()), HasSubstr("in 3 attempts"));
  EXPECT_EQ(runs().of(1), 0);
  EXPECT_EQ(group[0]->statistics().calls_repeated, 2u);
  group.expect_empty();
}

TEST_P(Retry, DeadlineEndsAttempts) {
  RpcBackendOptions options =
      with(cut_first(100'000, [](const proto::Envelope& m) { return calls(m, "count_and_double"); }));
  options.retry.max_attempts = 100'000;
  testing::Group group(2, options);
  const absl::Time start = absl::Now();
  EXPECT_FALSE(
      group[0]
          ->rpc_async<&count_and_double>(Destination("worker1").with_timeout(absl::Milliseconds(100)), 1)
          .result()
          .ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  group.expect_empty();
}

// A call whose connection breaks while it runs. It waits long for its next attempt.
class Detached : public Retry {
 protected:
  void start(absl::Duration timeout = absl::Seconds(60), bool mute = false) {
    auto muted = std::make_shared<std::atomic<bool>>(false);
    RpcBackendOptions options = with([muted, mute](const proto::Envelope& envelope) {
      if (calls(envelope, "break_connection")) {
        *muted = mute;
        return Fault::Kind::kCut;
      }
      return *muted && (envelope.has_cancel() || envelope.has_request()) ? Fault::Kind::kDrop
                                                                         : Fault::Kind::kDeliver;
    });
    options.retry.first_backoff = absl::Seconds(40);
    options.retry.max_backoff = absl::Seconds(40);
    group_ = std::make_unique<testing::Group>(2, options);
    call_ = (*group_)[0]->rpc_async<&hold>(Destination("worker1").with_timeout(timeout), 1);
    held().started.future().wait();
    EXPECT_EQ((*group_)[0]->rpc_async<&break_connection>("worker1").result().code(),
              absl::StatusCode::kUnavailable);
  }
  void expect_cancelled() { EXPECT_TRUE(held().cancelled.future().wait_for(absl::Seconds(30))); }
  void end() {
    held().answer.set_value(1);
    group_->expect_empty();
  }

  std::unique_ptr<testing::Group> group_;
  Future<int64_t> call_;
};
INSTANTIATE_TEST_SUITE_P(Transports, Detached, ::testing::Values("tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Detached, CancelReachesTheHandlerOnAnotherConnection) {
  start();
  EXPECT_FALSE(held().cancelled.future().done());
  call_.cancel();
  EXPECT_EQ(call_.result().status().code(), absl::StatusCode::kCancelled);
  expect_cancelled();
  end();
}

TEST_P(Detached, DeathOfTheCallerCancels) {
  start();
  EXPECT_FALSE(held().cancelled.future().done());
  group_->kill(0);
  EXPECT_EQ(call_.result().status().code(), absl::StatusCode::kFailedPrecondition);
  expect_cancelled();
  end();
}

TEST_P(Detached, DeadlineCancelsWhenNoCancelArrives) {
  // Long enough for the call to begin and for its connection to break.
  start(absl::Seconds(5), /*mute=*/true);
  // The deadline leaves no time for another attempt.
  EXPECT_EQ(call_.result().status().code(), absl::StatusCode::kUnavailable);
  expect_cancelled();
  held().answer.set_value(1);
  // A graceful shutdown would wait for the messages that were dropped.
  group_->kill(0);
}

TEST_P(Detached, DeathOfTheWorkerFailsTheCallAtOnce) {
  start();
  const absl::Time begin = absl::Now();
  group_->kill(1);
  EXPECT_EQ(call_.result().status().code(), absl::StatusCode::kUnavailable);
  // Long before the next attempt of the call.
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  end();
}

TEST_P(Retry, ShutdownOfTheCallerEndsItsAttempts) {
  RpcBackendOptions options =
      with(cut_first(1, [](const proto::Envelope& m) { return calls(m, "count_and_double"); }));
  options.retry.first_backoff = absl::Seconds(40);
  options.retry.max_backoff = absl::Seconds(40);
  testing::Group group(2, options);
  Future<int64_t> call = group[0]->rpc_async<&count_and_double>("worker1", 1);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[0]->statistics().calls_repeated == 0 && absl::Now() < deadline) std::this_thread::yield();
  group.kill(0);
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(Retry, AnswersAreDroppedWhenTheirCallerHasThem) {
  testing::Group group(2, with([](const proto::Envelope&) { return Fault::Kind::kDeliver; }));
  for (int i = 0; i < 200; ++i) EXPECT_EQ(group[0]->rpc_sync<&count_and_double>("worker1", i), 2 * i);
  // The answer of the last request is still kept, because no later request has raised answered_below.
  EXPECT_LE(group[1]->tables().kept_answers, 2u);
}

TEST_P(Retry, RepeatedMessagesRunOnce) {
  testing::Group group(2, with([](const proto::Envelope& envelope) {
                         return envelope.request().has_function() || answers_a_call(envelope)
                                    ? Fault::Kind::kDuplicate
                                    : Fault::Kind::kDeliver;
                       }));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(group[0]->rpc_sync<&count_and_double>("worker1", i), 2 * i);
    EXPECT_LE(runs().of(i), 1);
  }
  group.expect_empty();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (group[0]->statistics().late_answers < 50 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_GE(group[0]->statistics().late_answers, 50u);
}

TEST_P(Retry, ManyCallsOverABadConnectionAllSucceedAndRunOnce) {
  RpcBackendOptions options;
  options.transports = {GetParam()};
  options.retry.max_attempts = 1'000;
  options.retry.first_backoff = absl::Milliseconds(1);
  options.retry.max_backoff = absl::Milliseconds(2);
  options.flow.max_calls = 16;
  // A connection that breaks again before it was used counts as a sign of a dead worker, so faults must be
  // rare.
  auto last_cut = std::make_shared<std::atomic<int64_t>>(0);
  auto random = std::make_shared<std::atomic<uint32_t>>(1);
  options.hooks = testing::outgoing_faults([last_cut, random](const proto::Envelope& envelope) -> Fault {
    if (!calls(envelope, "count_and_double") && !answers_a_call(envelope)) return {};
    const uint32_t drawn = (random->fetch_add(1) * 2654435761u) >> 24;
    if (drawn < 16) return {Fault::Kind::kDuplicate};
    if (drawn < 32) return {Fault::Kind::kDelay, absl::Milliseconds(2)};
    int64_t last = last_cut->load();
    const int64_t now = absl::ToUnixMillis(absl::Now());
    const bool cut = drawn < 64 && now > last + 30 && last_cut->compare_exchange_strong(last, now);
    return {cut ? Fault::Kind::kCut : Fault::Kind::kDeliver};
  });
  testing::Group group(2, options);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::shared_ptr<Agent>& agent = group[t % 2];
      std::vector<Future<int64_t>> results;
      for (int64_t i = 0; i < 100; ++i) {
        results.push_back(
            agent->rpc_async<&count_and_double>(t % 2 == 0 ? "worker1" : "worker0", t * 1000 + i));
      }
      for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(results[i].result().value_or(-1), 2 * (t * 1000 + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(runs().of(t * 1000 + i), 1) << t << " " << i;
  }
  EXPECT_GT(group[0]->statistics().calls_repeated + group[1]->statistics().calls_repeated, 0u);
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
