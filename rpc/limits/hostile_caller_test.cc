#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/rref/reference_codec.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/rpc/testing/impostor.h"
#include "gradwire/store/hash_store.h"

// A member of the group that does not keep to its flow window, over real sockets, beside one that does. Each
// group checks at its end that no table of an agent has an entry left.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

// Calls that end when the test says so, without a thread that waits for it.
Promise<int64_t>* gate = nullptr;
std::atomic<int> parked{0};
Future<int64_t> park(std::string) {
  ++parked;
  return gate->future();
}
GRADWIRE_RPC(park)

Future<int64_t> park_repeatable(std::string text) { return park(std::move(text)); }
GRADWIRE_RPC_IDEMPOTENT(park_repeatable)

constexpr int64_t kAnswerBytes = 256 << 10;
std::atomic<int> answers_made{0};
std::string large_answer() {
  ++answers_made;
  return std::string(kAnswerBytes, 'x');
}
GRADWIRE_RPC(large_answer)

struct Shelf {
  explicit Shelf(int64_t start) : value(start) {}
  int64_t get() { return value; }
  const int64_t value;
};
GRADWIRE_RPC_CLASS(Shelf, int64_t)
GRADWIRE_RPC_METHOD(Shelf, get)
// Handlers that use these run at the same time.
Mutex shelves;
RRef<Shelf>* shared_shelf ABSL_GUARDED_BY(shelves) = nullptr;
std::vector<RRef<Shelf>>* kept ABSL_GUARDED_BY(shelves) = nullptr;
RRef<Shelf> lend() {
  MutexLock lock(shelves);
  return *shared_shelf;
}
GRADWIRE_RPC(lend)

void keep(RRef<Shelf> shelf) {
  MutexLock lock(shelves);
  kept->push_back(std::move(shelf));
}
GRADWIRE_RPC(keep)

void set_shared_shelf(RRef<Shelf>* shelf) {
  MutexLock lock(shelves);
  shared_shelf = shelf;
}
void set_kept(std::vector<RRef<Shelf>>* list) {
  MutexLock lock(shelves);
  kept = list;
}

// Three workers: 0 is called, 1 is honest, and the test sends messages in the name of 2.
class HostileCaller : public ::testing::Test {
 protected:
  void start(const CallerLimits& limits) {
    gate = &gate_;
    parked = 0;
    answers_made = 0;
    RpcBackendOptions options;
    options.store = store_;
    // The window of the honest worker must not be larger than the limits.
    options.flow = {.max_calls = 10, .max_bytes = 64 << 10};
    options.caller_limits = limits;
    group_ = std::make_unique<testing::Group>(3, options);
    // Worker 2 itself is connected, so that it stays alive whatever happens to the hostile connection.
    EXPECT_EQ((*group_)[2]->rpc_sync<&add>("worker0", 2, 3), 5);
    expect_serving();
    links_ = callee()->tables().links;
    open_impostor(1000);
  }
  // Opens the hostile connection with this number.
  void open_impostor(uint64_t number) {
    impostor_ = std::make_unique<Impostor>(tcp_address_of(*store_, 0, 3));
    impostor_->open();
    impostor_->send(hello_of(*(*group_)[2], *callee(), number).SerializeAsString());
    EXPECT_EQ(impostor_->listener().wait_for_messages(1).size(), 1u);
  }

  const std::shared_ptr<Agent>& callee() const { return (*group_)[0]; }
  uint64_t refusals() const { return callee()->statistics().calls_over_limit; }
  void expect_serving() const { EXPECT_EQ((*group_)[1]->rpc_sync<&add>("worker0", 2, 3), 5); }

  // Entries of honest calls may end a little after their answers have arrived.
  void expect_served_calls(std::size_t count) const {
    EXPECT_TRUE(eventually([&] { return callee()->tables().served_calls == count; }));
  }

  template <auto function>
  static proto::Request request_of() {
    proto::Request request;
    request.set_function(callee_of_function<function>->name);
    request.set_signature(callee_of_function<function>->signature_hash);
    return request;
  }
  static proto::Request parking(std::size_t bytes) {
    proto::Request request = request_of<&park>();
    request.mutable_arguments()->add_values()->set_text(std::string(bytes, 'x'));
    return request;
  }
  Id id(uint64_t counter) const { return {(*group_)[2]->services().self().incarnation, counter}; }
  proto::Request creation(uint64_t counter) const {
    proto::Request request;
    request.set_constructor(callee_of_class<Shelf>->name);
    request.mutable_arguments()->add_values()->set_integer(1);
    to_proto(id(1'000'000 + 2 * counter), *request.mutable_result_rref());
    to_proto(id(1'000'001 + 2 * counter), *request.mutable_result_fork());
    return request;
  }

  // Sends the request as a call of its own. Returns false if the connection has ended.
  bool send(proto::Request request) {
    proto::Envelope envelope;
    request.set_call_id(++calls_);
    *envelope.mutable_request() = std::move(request);
    return impostor_->send(envelope.SerializeAsString());
  }
  // The answers to all calls, in any order. Waits for so many.
  std::vector<proto::Response> answers(std::size_t count) {
    std::vector<proto::Response> responses;
    std::size_t messages = count;
    while (responses.size() < count) {
      // Heartbeats may come in between.
      const auto received = impostor_->listener().wait_for_messages(messages);
      if (received.size() < messages) {
        ADD_FAILURE() << "only " << responses.size() << " answers have arrived";
        break;
      }
      responses.clear();
      for (const transport::Message& message : received) {
        proto::Envelope envelope;
        EXPECT_TRUE(envelope.ParseFromString(message.header));
        if (envelope.has_response()) responses.push_back(envelope.response());
      }
      messages = received.size() + 1;
    }
    return responses;
  }
  static std::size_t refused(const std::vector<proto::Response>& responses, const std::string& option) {
    std::size_t count = 0;
    for (const proto::Response& response : responses) {
      if (response.status().code() != static_cast<int>(absl::StatusCode::kResourceExhausted)) continue;
      ++count;
      for (const std::string& part :
           {std::string("worker \"worker2\""), std::string("worker \"worker0\""), "caller_limits." + option})
        EXPECT_THAT(response.status().message(), HasSubstr(part));
    }
    return count;
  }
  // Ends the calls that are parked, and the hostile connection.
  void finish() {
    gate_.set_value(7);
    impostor_->close();
  }

  const std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  Promise<int64_t> gate_;
  std::unique_ptr<testing::Group> group_;
  std::unique_ptr<Impostor> impostor_;
  // Another connection in the name of the same worker.
  std::unique_ptr<Impostor> other_;
  uint64_t calls_ = 0;
  // Connections of the callee besides the hostile one.
  std::size_t links_ = 0;
};

TEST_F(HostileCaller, CallsAboveTheLimitAreRefusedAndOthersAreServed) {
  start({.max_calls = 50, .max_call_bytes = 1 << 20});
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(send(parking(1)));
  EXPECT_EQ(refused(answers(950), "max_calls"), 950u);
  for (int i = 0; i < 20; ++i) expect_serving();
  EXPECT_EQ(refusals(), 950u);
  EXPECT_TRUE(eventually([] { return parked == 50; }));
  expect_served_calls(50);
  gate_.set_value(7);
  const std::vector<proto::Response> all = answers(1000);
  EXPECT_EQ(refused(all, "max_calls"), 950u);
  EXPECT_EQ(parked, 50);
  // The places are free again.
  send(parking(1));
  EXPECT_EQ(refused(answers(1001), "max_calls"), 950u);
  impostor_->close();
  group_->expect_empty();
}

TEST_F(HostileCaller, AMalformedTraceIsRefused) {
  start({.max_calls = 50, .max_call_bytes = 1 << 20});
  proto::CallTrace valid;
  valid.set_trace_low(1);
  valid.set_span(2);
  std::vector<proto::CallTrace> malformed(5, valid);
  malformed[0].set_trace_low(0);
  malformed[1].set_span(0);
  malformed[2].set_flags(2);
  malformed[3].set_state("a=\n");
  malformed[4].set_state(std::string(513, 'a'));
  malformed.push_back(valid);
  for (const proto::CallTrace& trace : malformed) {
    proto::Request request = request_of<&large_answer>();
    *request.mutable_trace() = trace;
    ASSERT_TRUE(send(request));
  }
  for (const proto::Response& response : answers(malformed.size())) {
    const bool is_valid = response.call_id() == malformed.size();
    EXPECT_EQ(response.status().code(),
              static_cast<int>(is_valid ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(answers_made, 1);
  finish();
}

TEST_F(HostileCaller, BytesAboveTheLimitAreRefused) {
  start({.max_calls = 1000, .max_call_bytes = 1 << 20});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(send(parking(100 << 10)));
  // Ten requests of 100 KiB and a header fit into 1 MiB.
  EXPECT_EQ(refused(answers(90), "max_call_bytes"), 90u);
  expect_serving();
  expect_served_calls(10);
  finish();
  group_->expect_empty();
}

TEST_F(HostileCaller, ARefusedRepeatableCallMayBeRepeated) {
  start({.max_calls = 10, .max_call_bytes = 1 << 20});
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(send(parking(1)));
  proto::Request request = request_of<&park_repeatable>();
  request.mutable_arguments()->add_values()->set_text("x");
  request.set_request_id(1);
  request.set_attempt(1);
  ASSERT_TRUE(send(request));
  EXPECT_EQ(refused(answers(1), "max_calls"), 1u);
  gate_.set_value(7);
  EXPECT_EQ(answers(11).size(), 11u);
  request.set_attempt(2);
  ASSERT_TRUE(send(request));
  EXPECT_EQ(refused(answers(12), "max_calls"), 1u);
  EXPECT_EQ(parked, 11);
  impostor_->close();
}

TEST_F(HostileCaller, ConnectionsOfOneCallerShareItsLimit) {
  start({.max_calls = 10, .max_call_bytes = 1 << 20});
  Impostor second(tcp_address_of(*store_, 0, 3));
  second.open();
  second.send(hello_of(*(*group_)[2], *callee(), 1001).SerializeAsString());
  EXPECT_EQ(second.listener().wait_for_messages(1).size(), 1u);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(send(parking(1)));
  EXPECT_TRUE(eventually([] { return parked == 10; }));
  proto::Envelope envelope;
  *envelope.mutable_request() = parking(1);
  envelope.mutable_request()->set_call_id(1);
  ASSERT_TRUE(second.send(envelope.SerializeAsString()));
  EXPECT_TRUE(eventually([&] { return refusals() == 1; }));
  // The end of a connection cancels its calls, but they count until their handlers have ended.
  impostor_->close();
  envelope.mutable_request()->set_call_id(2);
  ASSERT_TRUE(second.send(envelope.SerializeAsString()));
  EXPECT_TRUE(eventually([&] { return refusals() == 2; }));
  gate_.set_value(7);
  EXPECT_TRUE(eventually([&] { return callee()->tables().served_calls == 0; }));
  second.close();
  group_->expect_empty();
}

TEST_F(HostileCaller, MessagesOfTheFrameworkAboveTheLimitAreRefused) {
  start({.max_calls = 1000, .max_call_bytes = 1 << 20, .max_messages = 10});
  // It comes to many barriers with the callee, which does not come.
  constexpr uint32_t kArriveService = 12;
  std::vector<uint64_t> members = {callee()->services().self().incarnation,
                                   (*group_)[2]->services().self().incarnation};
  std::sort(members.begin(), members.end());
  for (uint64_t number = 0; number < 100; ++number) {
    proto::Arrive arrive;
    arrive.mutable_members()->Add(members.begin(), members.end());
    arrive.set_number(number);
    proto::Request request;
    request.mutable_service()->set_number(kArriveService);
    request.mutable_service()->set_body(arrive.SerializeAsString());
    ASSERT_TRUE(send(request));
  }
  EXPECT_EQ(refused(answers(90), "max_messages"), 90u);
  expect_serving();
  expect_served_calls(10);
  EXPECT_EQ(callee()->tables().counted_callers, 1u);
  finish();
  group_->kill(2);
  EXPECT_TRUE(eventually([&] { return callee()->tables().counted_callers == 0; }));
}

TEST_F(HostileCaller, ReferencesAboveTheLimitAreRefusedAndEndWithTheirHolder) {
  start({.max_calls = 1000, .max_call_bytes = 1 << 20, .max_references = 20});
  for (uint64_t i = 0; i < 15; ++i) ASSERT_TRUE(send(creation(i)));
  EXPECT_EQ(refused(answers(15), "max_references"), 0u);
  // References that others have passed on count as well.
  {
    RRef<Shelf> shelf = (*group_)[1]->remote<Shelf>("worker0", 3);
    shelf.confirmed().wait();
    for (uint64_t i = 0; i < 10; ++i) {
      proto::ForkAdd add;
      to_proto(shelf.handle()->rref(), *add.mutable_rref());
      to_proto(id(2'000'000 + i), *add.mutable_fork());
      proto::Request request;
      request.mutable_service()->set_number(kForkAdd);
      request.mutable_service()->set_body(add.SerializeAsString());
      ASSERT_TRUE(send(request));
    }
    EXPECT_EQ(refused(answers(25), "max_references"), 5u);
  }
  for (uint64_t i = 100; i < 110; ++i) ASSERT_TRUE(send(creation(i)));
  EXPECT_EQ(refused(answers(35), "max_references"), 15u);
  // 15 values that the hostile worker made, and the one to which it has references.
  EXPECT_EQ(callee()->tables().values, 16u);
  EXPECT_EQ((*group_)[1]->remote<Shelf>("worker0", 4).rpc_sync<&Shelf::get>(), 4);
  finish();
  // The dead give everything back.
  group_->kill(2);
  EXPECT_TRUE(eventually([&] { return callee()->tables().values == 0; }));
}

TEST_F(HostileCaller, ReferencesThatItPassesOnAreLimited) {
  start({.max_calls = 1000, .max_call_bytes = 1 << 20, .max_references = 20});
  std::vector<RRef<Shelf>> held;
  set_kept(&held);
  for (uint64_t i = 0; i < 30; ++i) {
    proto::Request request = request_of<&keep>();
    request.mutable_arguments()->add_values()->set_reference(0);
    proto::Reference& reference = *request.mutable_arguments()->add_references();
    to_proto(id(3'000'000), *reference.mutable_rref());
    to_proto(id(3'000'001 + i), *reference.mutable_fork());
    reference.set_owner((*group_)[2]->services().self().incarnation);
    reference.set_type(callee_of_class<Shelf>->name);
    reference.set_registered(true);
    ASSERT_TRUE(send(request));
  }
  EXPECT_EQ(refused(answers(30), "max_references"), 10u);
  EXPECT_EQ(callee()->tables().held_forks, 20u);
  EXPECT_EQ(refusals(), 10u);
  // The others still pass references on.
  AgentGuard honest((*group_)[1]);
  rpc_sync<&keep>("worker0", RRef<Shelf>(Shelf(5)));
  EXPECT_EQ(callee()->tables().held_forks, 21u);
  set_kept(nullptr);
  held.clear();
  finish();
  group_->expect_empty();
}

TEST_F(HostileCaller, AnAnswerWithAReferenceNeedsRoomForIt) {
  start({.max_calls = 1000, .max_call_bytes = 1 << 20, .max_references = 20});
  {
    AgentGuard guard(callee());
    RRef<Shelf> shelf(Shelf(5));
    set_shared_shelf(&shelf);
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(send(request_of<&lend>()));
    EXPECT_EQ(refused(answers(50), "max_references"), 30u);
    AgentGuard honest((*group_)[1]);
    EXPECT_EQ(rpc_sync<&lend>("worker0").rpc_sync<&Shelf::get>(), 5);
    set_shared_shelf(nullptr);
  }
  finish();
  group_->kill(2);
  EXPECT_TRUE(eventually([&] { return callee()->tables().values == 0; }));
}

TEST_F(HostileCaller, APeerThatDoesNotReadGetsNoMoreAnswersAndIsServedWhenItReads) {
  constexpr uint64_t kUnread = 4 << 20;
  start({.max_calls = 1000, .max_call_bytes = 1 << 20, .max_unread_bytes = kUnread});
  impostor_->listener().hold_back();
  constexpr int kCalls = 1000;
  for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(send(request_of<&large_answer>()));
  EXPECT_TRUE(eventually([&] { return callee()->tables().served_calls == 0 && refusals() > 0; }));
  for (int i = 0; i < 20; ++i) expect_serving();
  // The buffers of the sockets come on top, and an answer for each thread.
  EXPECT_LT(answers_made * kAnswerBytes, int64_t{64} << 20);
  impostor_->listener().resume();
  const std::size_t before = answers(kCalls).size();
  EXPECT_EQ(before, static_cast<std::size_t>(kCalls));
  EXPECT_EQ(refused(answers(kCalls), "max_unread_bytes"), refusals());
  const int made = answers_made;
  ASSERT_TRUE(send(request_of<&large_answer>()));
  EXPECT_EQ(answers(kCalls + 1).size(), static_cast<std::size_t>(kCalls + 1));
  EXPECT_EQ(answers_made, made + 1);
  finish();
  group_->expect_empty();
}

TEST_F(HostileCaller, APeerThatGoesOnWithoutReadingLosesItsConnection) {
  start({.max_calls = 100,
         .max_call_bytes = 1 << 20,
         .max_messages = 100,
         .max_unread_bytes = uint64_t{4} << 20});
  impostor_->listener().hold_back();
  EXPECT_TRUE(eventually([&] {
    for (int i = 0; i < 100; ++i) send(request_of<&large_answer>());
    return callee()->tables().links == links_;
  }));
  expect_serving();
  EXPECT_LT(answers_made * kAnswerBytes, int64_t{64} << 20);
  impostor_->listener().resume();
  (void)impostor_->listener().wait_closed();
  group_->expect_empty();
}

// The first connection of worker 2 does not read. The second one does.
TEST_F(HostileCaller, UnreadAnswersCountForAllConnectionsOfACaller) {
  start({.max_calls = 1000, .max_call_bytes = 1 << 20, .max_unread_bytes = uint64_t{4} << 20});
  impostor_->listener().hold_back();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(send(request_of<&large_answer>()));
  EXPECT_TRUE(
      eventually([&] { return answers_made + refusals() == 1000 && callee()->tables().served_calls == 0; }));
  const uint64_t before = refusals();
  std::swap(impostor_, other_);
  open_impostor(1001);
  const int made = answers_made;
  ASSERT_TRUE(send(request_of<&large_answer>()));
  EXPECT_EQ(refused(answers(1), "max_unread_bytes"), 1u);
  EXPECT_EQ(refusals(), before + 1);
  EXPECT_EQ(answers_made, made);
  // Another caller is served.
  expect_serving();
  std::swap(impostor_, other_);
  impostor_->listener().resume();
  EXPECT_EQ(answers(1000).size(), 1000u);
  std::swap(impostor_, other_);
  ASSERT_TRUE(send(request_of<&large_answer>()));
  EXPECT_EQ(refused(answers(2), "max_unread_bytes"), 1u);
  EXPECT_EQ(answers_made, made + 1);
  other_->close();
  finish();
  group_->expect_empty();
}

TEST_F(HostileCaller, ACallerHasALimitedNumberOfConnections) {
  start({.max_calls = 1000, .max_call_bytes = 1 << 20});
  // Worker 2 itself has one, and the impostor another one.
  std::vector<std::unique_ptr<Impostor>> others;
  uint64_t number = 1001;
  for (; others.size() + 2 < Peer::kMostConnections; ++number) {
    others.push_back(std::move(impostor_));
    open_impostor(number);
  }
  Impostor refused(tcp_address_of(*store_, 0, 3));
  refused.open();
  refused.send(hello_of(*(*group_)[2], *callee(), number).SerializeAsString());
  const std::vector<transport::Message> received = refused.listener().wait_for_messages(1);
  ASSERT_EQ(received.size(), 1u);
  proto::Envelope goodbye;
  ASSERT_TRUE(goodbye.ParseFromString(received[0].header));
  EXPECT_EQ(goodbye.goodbye().reason().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  (void)refused.listener().wait_closed();
  // An old one ends, and makes room.
  others.front()->close();
  EXPECT_TRUE(eventually([&] { return callee()->tables().links == links_ + Peer::kMostConnections - 2; }));
  others.front() = std::move(impostor_);
  open_impostor(number + 1);
  expect_serving();
  for (const std::unique_ptr<Impostor>& other : others) other->close();
  finish();
  group_->expect_empty();
}

TEST_F(HostileCaller, AnHonestCallerWithAFullWindowIsNotRefused) {
  // The limits are as large as the window, and not larger.
  start({.max_calls = 10, .max_call_bytes = 64 << 10});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int round = 0; round < 20; ++round) {
        std::vector<Future<int64_t>> sums;
        for (int64_t i = 0; i < 50; ++i) sums.push_back((*group_)[1]->rpc_async<&add>("worker0", i, 1));
        for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(sums[i].result().value_or(-1), i + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refusals(), 0u);
  finish();
  group_->expect_empty();
}

TEST(CallerLimitsAtStart, OptionsThatDoNotAgreeAreRefused) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  options.caller_limits.max_calls = 5;
  const absl::Status status = status_of([&] { Agent::start("a", 0, 1, options); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("caller_limits.max_calls is 5"));
}

}  // namespace
}  // namespace gradwire::rpc
