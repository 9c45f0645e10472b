#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/testing/cut_store.h"
#include "gradwire/rpc/testing/network.h"
#include "gradwire/rpc/testing/scripted_worker.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/fault_injection.h"

// Tests the code between the state machines of an agent and its messages: links, repetitions, fences, held
// messages. One agent is real. The test plays all other workers, and so decides the order of all messages.
namespace gradwire::rpc {
namespace {

using testing::Network;
using testing::ScriptedLink;
using testing::ScriptedWorker;
using transport::Direction;

struct Box {
  explicit Box(int64_t start) : value(start) {}
  int64_t get() const { return value; }
  int64_t value;
};
GRADWIRE_RPC_CLASS(Box, int64_t)
GRADWIRE_RPC_METHOD(Box, get)

int64_t plain(int64_t value) { return value; }
GRADWIRE_RPC(plain)
int64_t is_owner(const RRef<Box>& box) { return box.is_owner() ? 1 : 0; }
GRADWIRE_RPC(is_owner)

// Opened by the test.
std::atomic<bool> gate_is_open{true};
int64_t at_the_gate(int64_t value) {
  eventually([] { return gate_is_open.load(); });
  return 2 * value;
}
GRADWIRE_RPC_IDEMPOTENT(at_the_gate)

std::atomic<int> times_ran{0};
int64_t counted() { return ++times_ran; }
GRADWIRE_RPC(counted)

bool is_call(const proto::Envelope& envelope) {
  return envelope.has_request() && !envelope.request().has_service();
}

class Glue : public ::testing::Test {
 protected:
  using BeforeSending = std::function<void(const proto::Envelope&)>;

  Glue() {
    RpcBackendOptions options;
    options.store = cut_;
    options.transports = {"tcp"};
    options.hooks = wrap_transports([this](std::unique_ptr<transport::Transport> inner) {
      return transport::make_fault_injecting_transport(
          network_.wrapper()(std::move(inner)),
          [this](Direction direction, const transport::Message& message) {
            const BeforeSending before = before_sending();
            proto::Envelope envelope;
            if (direction == Direction::kOutgoing && before && envelope.ParseFromString(message.header)) {
              before(envelope);
            }
            return transport::Fault();
          });
    });
    // The agent must not suspect a scripted worker because it is silent.
    options.heartbeat = {
        .interval = absl::Hours(1), .suspect_after = absl::Hours(3), .dead_after = absl::Hours(4)};
    agent_ = Agent::start("agent", -1, 0, options);
    a_link_ = a_.connect(*agent_);
  }
  ~Glue() override { agent_->shutdown(/*graceful=*/false); }

  // Calls `before` with each message that the agent is about to send, on its threads, also while it shuts
  // down.
  void set_before_sending(BeforeSending before) {
    MutexLock lock(mutex_);
    before_sending_ = std::move(before);
  }

  std::size_t owned() const { return agent_->tables().owned_rrefs; }

  // Returns when the agent has handled every earlier message on the link: sends a Ping and waits for its
  // answer.
  void settle(ScriptedLink& link) {
    proto::Envelope ping;
    const uint64_t call_id = ++last_call_;
    ping.mutable_request()->set_call_id(call_id);
    ping.mutable_request()->mutable_service()->set_number(kPing);
    link.send(ping);
    (void)link.wait_for_response(call_id);
  }

  // Creates a value at the agent. `worker` holds its fork.
  void create(ScriptedWorker& worker, ScriptedLink& link, uint64_t rref, uint64_t fork) {
    proto::Envelope envelope;
    proto::Request& request = *envelope.mutable_request();
    request.set_call_id(++last_call_);
    request.set_constructor(callee_of_class<Box>->name);
    request.mutable_arguments()->add_values()->set_integer(7);
    to_proto(worker.id(rref), *request.mutable_result_rref());
    to_proto(worker.id(fork), *request.mutable_result_fork());
    link.send(envelope);
    EXPECT_EQ(link.wait_for_response(request.call_id()).status().code(), 0);
  }

  static proto::Envelope goodbye() {
    proto::Envelope envelope;
    status_to_proto(absl::CancelledError("the worker leaves"), *envelope.mutable_goodbye()->mutable_reason());
    return envelope;
  }

  static proto::Fence fence_in(const proto::Request& request) {
    proto::Fence fence;
    EXPECT_TRUE(fence.ParseFromString(request.service().body()));
    return fence;
  }
  static std::set<uint64_t> dead_in(const proto::Request& request) {
    const proto::Fence fence = fence_in(request);
    return {fence.dead().begin(), fence.dead().end()};
  }

  Network network_;
  const std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  const std::shared_ptr<testing::CutStore> cut_ = std::make_shared<testing::CutStore>(store_);
  ScriptedWorker a_{network_, store_, "a"};
  ScriptedWorker b_{network_, store_, "b"};
  ScriptedWorker c_{network_, store_, "c"};
  std::shared_ptr<Agent> agent_;
  std::shared_ptr<ScriptedLink> a_link_;
  uint64_t last_call_ = 1000;

 private:
  BeforeSending before_sending() {
    MutexLock lock(mutex_);
    return before_sending_;
  }

  Mutex mutex_;
  BeforeSending before_sending_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(Glue, ConnectionWhoseOtherEndDoesNotIntroduceItselfEnds) {
  const std::shared_ptr<ScriptedLink> silent = b_.open(*agent_);
  network_.end_introductions();
  EXPECT_TRUE(eventually([&] { return silent->is_closed(); }));
  settle(*a_link_);
  EXPECT_FALSE(a_link_->is_closed());
}

TEST_F(Glue, LossBeforeTheLogHasItAsksNobody) {
  create(a_, *a_link_, 1, 2);
  std::shared_ptr<ScriptedLink> b = b_.connect(*agent_);
  std::shared_ptr<ScriptedLink> c = c_.connect(*agent_);
  cut_->cut();
  a_link_->send(goodbye());
  ASSERT_TRUE(eventually([&] { return agent_->worker_state("a") == WorkerState::kLeft; }));
  settle(*b);
  for (const proto::Envelope& envelope : b->all()) {
    EXPECT_NE(envelope.request().service().number(), kFence) << envelope.ShortDebugString();
  }
  EXPECT_EQ(owned(), 1u);
  cut_->restore();
  for (ScriptedLink* link : {b.get(), c.get()}) {
    const proto::Request fence = link->wait_for_service(kFence);
    EXPECT_EQ(dead_in(fence), std::set<uint64_t>{a_.self().incarnation});
    EXPECT_EQ(owned(), 1u);
    link->answer(fence);
  }
  EXPECT_TRUE(eventually([&] { return owned() == 0; }));
}

TEST_F(Glue, DeathInTheLogEndsTheConnectionsOfTheDead) {
  create(a_, *a_link_, 1, 2);
  std::shared_ptr<ScriptedLink> b = b_.connect(*agent_);
  std::shared_ptr<ScriptedLink> c = c_.connect(*agent_);
  b_.declare_dead(a_.self());
  const proto::Envelope last =
      a_link_->wait_for([](const proto::Envelope& envelope) { return envelope.has_goodbye(); });
  EXPECT_EQ(last.goodbye().reason().code(), static_cast<int>(absl::StatusCode::kAborted));
  b->answer(b->wait_for_service(kFence));
  c->answer(c->wait_for_service(kFence));
  EXPECT_TRUE(eventually([&] { return owned() == 0; }));
}

// The agent closes its connections before it ends its calls. A call may find its connection closed in
// between.
TEST_F(Glue, CallWhoseConnectionIsClosedByALossFailsWithTheLoss) {
  const proto::Hello hello =
      a_link_->wait_for([](const proto::Envelope& envelope) { return envelope.has_hello(); }).hello();
  const Worker agent{hello.name(), hello.id(), hello.incarnation()};
  std::shared_ptr<ScriptedLink> second = a_.connect(*agent_);
  // The agent's threads use it after the end of this function, too.
  struct Progress {
    std::atomic<int> goodbyes{0};
    std::atomic<bool> call_ended{false};
  };
  const auto progress = std::make_shared<Progress>();
  set_before_sending([this, agent, progress](const proto::Envelope& envelope) {
    if (is_call(envelope)) {
      b_.declare_dead(agent);
      EXPECT_TRUE(eventually([&] { return progress->goodbyes == 2; }));
    } else if (envelope.has_goodbye() && ++progress->goodbyes == 2) {
      EXPECT_TRUE(eventually([&] { return progress->call_ended.load(); }));
    }
  });
  const absl::Status failed = agent_->rpc_async<&plain>("a", 1).result().status();
  progress->call_ended = true;
  EXPECT_EQ(failed.code(), absl::StatusCode::kAborted) << failed;
  EXPECT_EQ(worker_of(failed), "a");
  const absl::Status next = agent_->rpc_async<&plain>("a", 1).result().status();
  EXPECT_TRUE(absl::StrContains(failed.message(), next.message())) << failed << "\n" << next;
}

// How the agent learns that a worker has left while the worker's last answer is under way.
enum class Departure {
  kLog,
  kGoodbyeOnAnotherLink,
};

class LastAnswer : public Glue, public ::testing::WithParamInterface<Departure> {};

TEST_P(LastAnswer, ArrivesAfterTheNewsThatItsWorkerHasLeft) {
  create(a_, *a_link_, 1, 2);
  std::shared_ptr<ScriptedLink> b = b_.connect(*agent_);
  std::shared_ptr<ScriptedLink> c = c_.connect(*agent_);
  const std::shared_ptr<ScriptedLink> second = a_.connect(*agent_);
  settle(*second);
  Future<int64_t> call = agent_->rpc_async<&plain>("a", 1);
  const proto::Request request = a_link_->wait_for(is_call).request();
  GetParam() == Departure::kLog ? a_.leave() : static_cast<void>(second->send(goodbye()));
  ASSERT_TRUE(eventually([&] { return agent_->worker_state("a") == WorkerState::kLeft; }));
  // Calls that begin now fail at once.
  const absl::Status refused = agent_->rpc_async<&plain>("a", 2).result().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "worker \"a\" has left")) << refused;
  EXPECT_FALSE(call.done());
  EXPECT_EQ(owned(), 1u);
  proto::Envelope answer;
  answer.mutable_response()->set_call_id(request.call_id());
  answer.mutable_response()->mutable_result()->add_values()->set_integer(8);
  a_link_->send(answer);
  EXPECT_EQ(call.wait(), 8);
  // The worker's references end with its last connection.
  settle(*b);
  for (const proto::Envelope& envelope : b->all()) {
    EXPECT_NE(envelope.request().service().number(), kFence) << envelope.ShortDebugString();
  }
  a_link_->close();
  second->close();
  b->answer(b->wait_for_service(kFence));
  c->answer(c->wait_for_service(kFence));
  EXPECT_TRUE(eventually([&] { return owned() == 0; }));
}

TEST_P(LastAnswer, IsNotWaitedForWhenTheConnectionEnds) {
  const std::shared_ptr<ScriptedLink> second = a_.connect(*agent_);
  settle(*second);
  Future<int64_t> call = agent_->rpc_async<&plain>("a", 1);
  (void)a_link_->wait_for(is_call);
  GetParam() == Departure::kLog ? a_.leave() : static_cast<void>(second->send(goodbye()));
  ASSERT_TRUE(eventually([&] { return agent_->worker_state("a") == WorkerState::kLeft; }));
  a_link_->close();
  const absl::Status failed = call.result().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_TRUE(absl::StrContains(failed.message(), "worker \"a\" has left")) << failed;
}

INSTANTIATE_TEST_SUITE_P(Glue, LastAnswer,
                         ::testing::Values(Departure::kLog, Departure::kGoodbyeOnAnotherLink));

TEST_F(Glue, FenceAnsweredWithAbortedIsNotPassed) {
  create(a_, *a_link_, 1, 2);
  std::shared_ptr<ScriptedLink> b = b_.connect(*agent_);
  std::shared_ptr<ScriptedLink> c = c_.connect(*agent_);
  c_.declare_dead(a_.self());
  // Aborted: b regards the agent as dead, as the log will show.
  b->answer(b->wait_for_service(kFence), absl::AbortedError("declared dead"));
  c->answer(c->wait_for_service(kFence));
  settle(*b);
  settle(*c);
  EXPECT_EQ(owned(), 1u);
  const std::size_t before = c->count();
  c_.declare_dead(b_.self());
  const proto::Request again = c->wait_for_service(kFence, before);
  EXPECT_EQ(dead_in(again), (std::set<uint64_t>{a_.self().incarnation, b_.self().incarnation}));
  EXPECT_EQ(owned(), 1u);
  c->answer(again);
  EXPECT_TRUE(eventually([&] { return owned() == 0; }));
}

TEST_F(Glue, SecondDeathBeginsTheFenceAnewThoughThatOneHadAnswered) {
  create(a_, *a_link_, 1, 2);
  std::shared_ptr<ScriptedLink> b = b_.connect(*agent_);
  std::shared_ptr<ScriptedLink> c = c_.connect(*agent_);
  c_.declare_dead(a_.self());
  b->answer(b->wait_for_service(kFence));
  const proto::Request first = c->wait_for_service(kFence);
  settle(*b);
  const std::size_t before = c->count();
  c_.declare_dead(b_.self());
  const proto::Request second = c->wait_for_service(kFence, before);
  EXPECT_GT(fence_in(second).round(), fence_in(first).round());
  c->answer(first);
  settle(*c);
  EXPECT_EQ(owned(), 1u);
  c->answer(second);
  EXPECT_TRUE(eventually([&] { return owned() == 0; }));
}

TEST_F(Glue, DeleteThatOvertakesItsCreationOverTwoLinksLeavesNothing) {
  std::shared_ptr<ScriptedLink> newer = a_.connect(*agent_);
  proto::ForkDelete message;
  to_proto(a_.id(1), *message.mutable_rref());
  to_proto(a_.id(2), *message.mutable_fork());
  message.mutable_sent()->set_newest(2);
  for (const auto& [number, messages] : {std::pair(1, 1), std::pair(2, 0)}) {
    proto::Departures::Connection& connection = *message.mutable_sent()->add_open();
    connection.set_number(number);
    connection.set_messages(messages);
  }
  proto::Envelope envelope;
  envelope.mutable_request()->set_call_id(1);
  envelope.mutable_request()->mutable_service()->set_number(kForkDelete);
  envelope.mutable_request()->mutable_service()->set_body(message.SerializeAsString());
  newer->send(envelope);
  settle(*newer);
  EXPECT_EQ(agent_->tables().remembered_deletes, 1u);
  create(a_, *a_link_, 1, 2);
  EXPECT_TRUE(eventually([&] { return owned() == 0 && agent_->tables().remembered_deletes == 0; }));
}

TEST_F(Glue, DeleteIsForgottenWhenTheOlderLinkCloses) {
  std::shared_ptr<ScriptedLink> newer = a_.connect(*agent_);
  proto::ForkDelete message;
  to_proto(a_.id(1), *message.mutable_rref());
  to_proto(a_.id(2), *message.mutable_fork());
  // The older connection has ended at its sender, but the agent has not read it to its end.
  message.mutable_sent()->set_newest(2);
  message.mutable_sent()->add_open()->set_number(2);
  proto::Envelope envelope;
  envelope.mutable_request()->set_call_id(1);
  envelope.mutable_request()->mutable_service()->set_number(kForkDelete);
  envelope.mutable_request()->mutable_service()->set_body(message.SerializeAsString());
  newer->send(envelope);
  settle(*newer);
  EXPECT_EQ(agent_->tables().remembered_deletes, 1u);
  a_link_->close();
  EXPECT_TRUE(eventually([&] { return agent_->tables().remembered_deletes == 0; }));
}

// Otherwise every Departures message of the agent would list all connections that were ever made.
TEST_F(Glue, ConnectionThatHasClosedIsNotReportedAnyMore) {
  for (int i = 0; i < 20; ++i) {
    a_link_->close();
    a_link_ = a_.connect(*agent_);
  }
  // The agent may have made connections itself, which are open.
  EXPECT_TRUE(eventually([&] {
    const AgentTables tables = agent_->tables();
    return tables.numbered_links <= tables.links;
  }));
}

TEST_F(Glue, FenceOfAStrangerIsAnsweredWhenTheStoreIsLost) {
  proto::Fence fence;
  fence.set_round(1);
  fence.add_dead(4711);
  proto::Envelope envelope;
  const uint64_t call_id = ++last_call_;
  envelope.mutable_request()->set_call_id(call_id);
  envelope.mutable_request()->mutable_service()->set_number(kFence);
  envelope.mutable_request()->mutable_service()->set_body(fence.SerializeAsString());
  a_link_->send(envelope);
  // The log may still name that worker.
  ASSERT_TRUE(eventually([&] { return agent_->tables().accused_strangers == 1; }));
  const std::size_t before = a_link_->count();
  settle(*a_link_);
  EXPECT_EQ(a_link_->count(), before + 1);
  cut_->cut();
  EXPECT_EQ(a_link_->wait_for_response(call_id).status().code(), 0);
  EXPECT_EQ(agent_->tables().accused_strangers, 0u);
}

// The agent passes the only reference to its value to b, on a link that breaks. Only b knows whether it has
// received the reference.
class LostReference : public Glue {
 protected:
  // Returns the new link, on which b has answered.
  std::shared_ptr<ScriptedLink> lose(bool received) {
    AgentGuard guard(agent_);
    std::optional<RRef<Box>> box(Box(1));
    Future<int64_t> call = agent_->rpc_async<&is_owner>("b", *box);
    std::shared_ptr<ScriptedLink> old = b_.accepted(0);
    const proto::Request request = old->wait_for(is_call).request();
    EXPECT_EQ(request.arguments().references_size(), 1);
    if (request.arguments().references_size() != 1) return old;
    const proto::Reference& reference = request.arguments().references(0);
    EXPECT_TRUE(reference.registered());
    box.reset();
    EXPECT_EQ(owned(), 1u);
    old->close();
    EXPECT_EQ(call.result().status().code(), absl::StatusCode::kUnavailable);
    std::shared_ptr<ScriptedLink> link = b_.accepted(1);
    const proto::Request question = link->wait_for_service(kForkRevoke);
    EXPECT_TRUE(asked_.ParseFromString(question.service().body()));
    EXPECT_EQ(from_proto(asked_.fork()), from_proto(reference.fork()));
    proto::ForkRevoked answer;
    answer.set_received(received);
    link->answer(question, answer.SerializeAsString());
    settle(*link);
    return link;
  }
  proto::ForkRevoke asked_;
};

TEST_F(LostReference, IsTakenBackWhenItsReceiverNeverGotIt) {
  (void)lose(/*received=*/false);
  EXPECT_TRUE(eventually([&] { return owned() == 0; }));
}

TEST_F(LostReference, CountsWhenItsReceiverHasIt) {
  std::shared_ptr<ScriptedLink> link = lose(/*received=*/true);
  EXPECT_EQ(owned(), 1u);
  proto::ForkDelete message;
  *message.mutable_rref() = asked_.rref();
  *message.mutable_fork() = asked_.fork();
  proto::Envelope envelope;
  envelope.mutable_request()->set_call_id(2);
  envelope.mutable_request()->mutable_service()->set_number(kForkDelete);
  envelope.mutable_request()->mutable_service()->set_body(message.SerializeAsString());
  link->send(envelope);
  EXPECT_TRUE(eventually([&] { return owned() == 0; }));
}

TEST_F(Glue, RepeatedCallGoesOnTheNewLink) {
  Future<int64_t> call = agent_->rpc_async<&at_the_gate>("b", int64_t{4});
  std::shared_ptr<ScriptedLink> old = b_.accepted(0);
  const proto::Request first = old->wait_for(is_call).request();
  ASSERT_NE(first.request_id(), 0u);
  old->close();
  std::shared_ptr<ScriptedLink> link = b_.accepted(1);
  const proto::Request second = link->wait_for(is_call).request();
  EXPECT_EQ(second.request_id(), first.request_id());
  EXPECT_EQ(second.call_id(), first.call_id());
  EXPECT_GT(second.attempt(), first.attempt());
  proto::Envelope answer;
  answer.mutable_response()->set_call_id(second.call_id());
  answer.mutable_response()->mutable_result()->add_values()->set_integer(8);
  link->send(answer);
  EXPECT_EQ(call.wait(), 8);
}

TEST_F(Glue, AnswerOfARepeatedRequestGoesWhereItCameLast) {
  gate_is_open = false;
  proto::Envelope envelope;
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(1);
  request.set_function(callee_of_function<&at_the_gate>->name);
  request.set_signature(callee_of_function<&at_the_gate>->signature_hash);
  request.mutable_arguments()->add_values()->set_integer(21);
  request.set_request_id(1);
  request.set_attempt(1);
  a_link_->send(envelope);
  settle(*a_link_);
  a_link_->close();
  EXPECT_TRUE(eventually([&] { return agent_->tables().orphaned_calls == 1; }));
  std::shared_ptr<ScriptedLink> link = a_.connect(*agent_);
  request.set_attempt(2);
  link->send(envelope);
  settle(*link);
  EXPECT_EQ(agent_->tables().orphaned_calls, 0u);
  gate_is_open = true;
  EXPECT_EQ(link->wait_for_response(1).result().values(0).integer(), 42);
}

TEST_F(Glue, RepetitionKeepsTheDeadlineOfTheCall) {
  // A call that expires before its repetition is due ends with Unavailable. The timeout is long, so that a
  // machine that pauses for a while does not cause that.
  Future<int64_t> call =
      agent_->rpc_async<&at_the_gate>(Destination("b").with_timeout(absl::Seconds(10)), int64_t{4});
  std::shared_ptr<ScriptedLink> old = b_.accepted(0);
  const proto::Request first = old->wait_for(is_call).request();
  EXPECT_GT(first.timeout_us(), 0);
  old->close();
  std::shared_ptr<ScriptedLink> link = b_.accepted(1);
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  // On a slow machine the call may expire before the second attempt.
  for (const proto::Envelope& envelope : link->all()) {
    if (!is_call(envelope)) continue;
    EXPECT_GT(envelope.request().timeout_us(), 0);
    EXPECT_LT(envelope.request().timeout_us(), first.timeout_us());
  }
}

TEST_F(Glue, CallThatExpiresBehindOthersEndsInItsTime) {
  Future<int64_t> long_call =
      agent_->rpc_async<&plain>(Destination("b").with_timeout(absl::Hours(1)), int64_t{1});
  std::shared_ptr<ScriptedLink> link = b_.accepted(0);
  const proto::Request first = link->wait_for(is_call).request();
  Future<int64_t> short_call =
      agent_->rpc_async<&plain>(Destination("b").with_timeout(absl::Milliseconds(50)), int64_t{2});
  EXPECT_EQ(short_call.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  const proto::Envelope cancel =
      link->wait_for([](const proto::Envelope& envelope) { return envelope.has_cancel(); });
  EXPECT_NE(cancel.cancel().call_id(), first.call_id());
  EXPECT_FALSE(long_call.done());
  proto::Envelope answer;
  answer.mutable_response()->set_call_id(first.call_id());
  answer.mutable_response()->mutable_result()->add_values()->set_integer(5);
  link->send(answer);
  EXPECT_EQ(long_call.wait(), 5);
}

// The caller sends nothing when the call expires: the callee must notice it.
TEST_F(Glue, CallThatExpiredBeforeItsTurnDoesNotRun) {
  gate_is_open = false;
  const int ran = times_ran;
  proto::Envelope first, second;
  first.mutable_request()->set_call_id(101);
  first.mutable_request()->set_function(callee_of_function<&at_the_gate>->name);
  first.mutable_request()->set_signature(callee_of_function<&at_the_gate>->signature_hash);
  first.mutable_request()->mutable_arguments()->add_values()->set_integer(21);
  first.mutable_request()->set_order_key(1);
  second.mutable_request()->set_call_id(102);
  second.mutable_request()->set_function(callee_of_function<&counted>->name);
  second.mutable_request()->set_signature(callee_of_function<&counted>->signature_hash);
  second.mutable_request()->set_order_key(1);
  // Shorter than the time after which the first call counts as started.
  second.mutable_request()->set_timeout_us(20'000);
  a_link_->send(first);
  a_link_->send(second);
  EXPECT_EQ(a_link_->wait_for_response(102).status().code(),
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(times_ran, ran);
  gate_is_open = true;
  EXPECT_EQ(a_link_->wait_for_response(101).result().values(0).integer(), 42);
}

TEST_F(Glue, WhatNamesAStrangerWaitsAndNothingOvertakesIt) {
  std::shared_ptr<ScriptedLink> other = a_.connect(*agent_);
  cut_->cut();
  const absl::Time start = absl::Now();
  // The agent cannot read the log, so it does not learn that this worker joins.
  ScriptedWorker stranger(network_, store_, "stranger");
  proto::Envelope envelope;
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(1);
  request.set_function(callee_of_function<&is_owner>->name);
  request.set_signature(callee_of_function<&is_owner>->signature_hash);
  request.mutable_arguments()->add_values()->set_reference(0);
  proto::Reference& reference = *request.mutable_arguments()->add_references();
  to_proto(stranger.id(1), *reference.mutable_rref());
  to_proto(a_.id(9), *reference.mutable_fork());
  reference.set_owner(stranger.self().incarnation);
  reference.set_owner_id(stranger.self().id);
  reference.set_type(value_type_name<Box>());
  a_link_->send(envelope);
  proto::Envelope behind;
  behind.mutable_request()->set_call_id(2);
  behind.mutable_request()->mutable_service()->set_number(kPing);
  a_link_->send(behind);
  settle(*other);
  const std::vector<proto::Envelope> early = a_link_->all();
  const bool waited = absl::Now() < start + Link::kStrangerTimeout;
  for (const proto::Envelope& message : early) EXPECT_FALSE(waited && message.has_response());
  cut_->restore();
  (void)a_link_->wait_for_response(2);
  EXPECT_EQ(a_link_->wait_for_response(1).call_id(), 1u);
}

// The states that are reported of one worker, in their order.
class States {
 public:
  States(Agent& agent, const std::string& name)
      : subscription_(agent.on_worker_change([seen = seen_, name](const WorkerInfo& who, WorkerState state) {
          if (who.name != name) return;
          MutexLock lock(seen->mutex);
          seen->list.push_back(state);
        })) {}

  std::vector<WorkerState> list() const {
    MutexLock lock(seen_->mutex);
    return seen_->list;
  }
  bool ends_with(WorkerState state) const {
    return eventually([&] {
      const std::vector<WorkerState> states = list();
      return !states.empty() && states.back() == state;
    });
  }

 private:
  struct Seen {
    Mutex mutex;
    std::vector<WorkerState> list ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  const std::shared_ptr<void> subscription_;
};

TEST_F(Glue, JoinIsReportedOnceAndTheEndOfASuspicionIsReported) {
  const States of_member(*agent_, "b");
  const States of_joiner(*agent_, "joiner");
  ScriptedWorker joiner(network_, store_, "joiner");
  std::shared_ptr<ScriptedLink> b = b_.connect(*agent_);
  std::shared_ptr<ScriptedLink> link = joiner.connect(*agent_);
  settle(*link);
  link->close();
  ASSERT_TRUE(of_joiner.ends_with(WorkerState::kSuspect));
  link = joiner.connect(*agent_);
  ASSERT_TRUE(of_joiner.ends_with(WorkerState::kAlive));
  joiner.leave();
  ASSERT_TRUE(eventually([&] { return agent_->worker_state("joiner") == WorkerState::kLeft; }));
  link->close();
  ASSERT_TRUE(of_joiner.ends_with(WorkerState::kLeft));
  // The member was there before the subscription, so its first connection changes nothing.
  EXPECT_EQ(of_member.list(), std::vector<WorkerState>());
  EXPECT_EQ(of_joiner.list(), (std::vector<WorkerState>{WorkerState::kAlive, WorkerState::kSuspect,
                                                        WorkerState::kAlive, WorkerState::kLeft}));
}

TEST_F(Glue, CreationThatWasLostEndsThoseWhoWaitForItAtOnce) {
  proto::Envelope envelope;
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(1);
  request.set_method(callee_of_function<&Box::get>->name);
  request.set_signature(callee_of_function<&Box::get>->signature_hash);
  to_proto(a_.id(1), *request.mutable_target());
  a_link_->send(envelope);
  settle(*a_link_);
  EXPECT_EQ(owned(), 1u);
  proto::CreationFailed failed;
  to_proto(a_.id(1), *failed.mutable_rref());
  to_proto(a_.id(2), *failed.mutable_fork());
  proto::Envelope message;
  message.mutable_request()->set_call_id(2);
  message.mutable_request()->mutable_service()->set_number(kCreationFailed);
  message.mutable_request()->mutable_service()->set_body(failed.SerializeAsString());
  a_link_->send(message);
  (void)a_link_->wait_for_response(2);
  // At once, not after the time that is allowed for requests on other connections.
  EXPECT_EQ(owned(), 0u);
  EXPECT_EQ(a_link_->wait_for_response(1).status().code(), static_cast<int>(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace gradwire::rpc
