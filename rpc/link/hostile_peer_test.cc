#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/arrivals.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/link/parts/parts_in_flight.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/rpc/testing/impostor.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/preface.h"

// Peers that connect to an agent's port and do not follow the protocol.
namespace gradwire::rpc {
namespace {

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)
struct Counter {
  explicit Counter(int64_t start) : value(start) {}
  int64_t increment(int64_t by) { return value += by; }
  std::atomic<int64_t> value;
};
GRADWIRE_RPC_CLASS(Counter, int64_t)
GRADWIRE_RPC_METHOD(Counter, increment)
int64_t use(const RRef<Counter>& counter) { return counter.rpc_sync<&Counter::increment>(1); }
GRADWIRE_RPC(use)

class HostilePeer : public ::testing::Test {
 protected:
  HostilePeer() : group_(2, options()) {
    address_ = tcp_address_of(*store_, 0, 2);
    // The two workers are connected before the test starts. A stranger must not disturb that connection.
    expect_serving();
  }

  RpcBackendOptions options() {
    RpcBackendOptions options;
    options.store = store_;
    return options;
  }

  void expect_serving() {
    EXPECT_EQ(group_[1]->rpc_sync<&add>("worker0", 2, 3), 5);
    EXPECT_EQ(group_[0]->rpc_sync<&add>("worker1", 2, 3), 5);
  }

  Descriptor connect_socket() {
    auto addresses = transport::resolve_addresses(address_);
    EXPECT_TRUE(addresses.ok());
    const transport::SocketAddress& to = addresses->front();
    Descriptor socket(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), to.get(), to.length), 0);
    return socket;
  }

  static bool closed_by_agent(const Descriptor& socket) {
    timeval timeout = {60, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    char bytes[512];
    ssize_t got = 0;
    while ((got = ::recv(socket.get(), bytes, sizeof(bytes), 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

  // A Hello of worker 1. Its connection number is used by no other connection of worker 1.
  proto::Envelope hello() { return hello_of(*group_[1], *group_[0], ++last_connection_); }

  std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  testing::Group group_;
  std::string address_;
  uint64_t last_connection_ = 1000;
};

TEST_F(HostilePeer, GarbageAndEndlessFramesEndTheirConnectionAlone) {
  const std::string preface = transport::Preface{.token = transport::random_token()}.encode();
  std::string huge = preface + transport::encode_frame_start(transport::Message());
  for (int i = 0; i < 8; ++i)
    huge[preface.size() + 8 + i] = static_cast<char>((uint64_t{1} << 60) >> (8 * i));
  const int descriptors = transport::count_descriptors();
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(50'000, '\xff'), huge}) {
    Descriptor socket = connect_socket();
    ASSERT_GT(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(closed_by_agent(socket));
  }
  expect_serving();
  // A lingering connection is closed here only after its other end is closed.
  EXPECT_EQ(transport::count_descriptors_down_to(descriptors), descriptors);
  group_.expect_empty();
}

TEST_F(HostilePeer, StrangersAreRefusedWithAReason) {
  proto::Envelope no_hello, version = hello(), stranger = hello(), stale = hello(), asker = hello();
  proto::Envelope bad_name = hello(), large_name = hello();
  bad_name.mutable_hello()->set_name("worker1\n");
  // Smaller than the limit on a first message: a larger one ends the connection before it is read.
  large_name.mutable_hello()->set_name(std::string(8 << 10, 'w'));
  no_hello.mutable_request()->set_function("x");
  version.mutable_hello()->set_protocol_version(99);
  stranger.mutable_hello()->set_name("mallory");
  asker.mutable_hello()->set_incarnation(0);
  stale.mutable_hello()->set_to_incarnation(1);
  const std::pair<proto::Envelope, absl::StatusCode> cases[] = {
      {no_hello, absl::StatusCode::kInvalidArgument},
      {version, absl::StatusCode::kFailedPrecondition},
      {stranger, absl::StatusCode::kNotFound},
      {stale, absl::StatusCode::kAborted},
      {asker, absl::StatusCode::kNotFound},
      {bad_name, absl::StatusCode::kInvalidArgument},
      {large_name, absl::StatusCode::kInvalidArgument},
  };
  for (const auto& [envelope, code] : cases) {
    Impostor impostor(address_);
    impostor.open();
    impostor.send(envelope.SerializeAsString());
    (void)impostor.listener().wait_closed();
    const auto messages = impostor.listener().wait_for_messages(1);
    ASSERT_EQ(messages.size(), 1u);
    proto::Envelope answer;
    ASSERT_TRUE(answer.ParseFromString(messages[0].header));
    EXPECT_EQ(answer.goodbye().reason().code(), static_cast<int>(code)) << answer.ShortDebugString();
    EXPECT_LT(messages[0].header.size(), 4096u);
  }
  expect_serving();
  group_.expect_empty();
}

// A Part with a buffer of some bytes.
struct SentPart {
  explicit SentPart(uint64_t number, bool has_bytes = true) {
    envelope.mutable_part()->set_number(number);
    if (has_bytes) buffers.emplace_back(bytes.data(), bytes.size(), nullptr);
  }
  void send(Impostor& impostor) { EXPECT_TRUE(impostor.send(envelope.SerializeAsString(), buffers)); }
  static inline std::string bytes = std::string(1000, 'x');
  proto::Envelope envelope;
  std::vector<transport::Buffer> buffers;
};

TEST_F(HostilePeer, PartsThatBreakTheRulesEndTheirConnection) {
  proto::Envelope unknown;
  unknown.mutable_request()->set_function(callee_of_function<&add>->name);
  unknown.set_parts(7);
  SentPart no_such_drop(3, false);
  no_such_drop.envelope.mutable_part()->set_dropped(true);
  const std::vector<std::function<void(Impostor&)>> cases = {
      [&](Impostor& impostor) { impostor.send(unknown.SerializeAsString()); },
      [](Impostor& impostor) { SentPart(0).send(impostor); },
      [](Impostor& impostor) { SentPart(1, false).send(impostor); },
      [&](Impostor& impostor) { no_such_drop.send(impostor); },
      [](Impostor& impostor) {
        for (uint64_t number = 1; number <= PartsInFlight::kMaxMessages + 1; ++number)
          SentPart(number).send(impostor);
      },
  };
  for (const auto& violate : cases) {
    Impostor impostor(address_);
    impostor.open();
    impostor.send(hello().SerializeAsString());
    violate(impostor);
    (void)impostor.listener().wait_closed();
    // Its Hello and its Goodbye.
    const auto messages = impostor.listener().wait_for_messages(2);
    ASSERT_EQ(messages.size(), 2u);
    proto::Envelope answer;
    ASSERT_TRUE(answer.ParseFromString(messages[1].header));
    EXPECT_EQ(answer.goodbye().reason().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_TRUE(eventually([&] { return group_[0]->tables().parted_messages == 0; }));
  }
  expect_serving();
  group_.expect_empty();
}

TEST_F(HostilePeer, PartsEndWithTheirMessageOrTheirConnection) {
  Impostor impostor(address_);
  impostor.open();
  impostor.send(hello().SerializeAsString());
  SentPart(1).send(impostor);
  SentPart(2).send(impostor);
  SentPart(1).send(impostor);
  EXPECT_TRUE(eventually([&] { return group_[0]->tables().parted_messages == 2; }));
  proto::Envelope call;
  proto::Request& request = *call.mutable_request();
  request.set_call_id(1);
  request.set_function(callee_of_function<&add>->name);
  request.set_signature(callee_of_function<&add>->signature_hash);
  request.mutable_arguments()->add_values()->set_integer(2);
  request.mutable_arguments()->add_values()->set_integer(3);
  call.set_parts(1);
  // A call may have buffers that no argument uses.
  impostor.send(call.SerializeAsString());
  const auto messages = impostor.listener().wait_for_messages(2);
  ASSERT_EQ(messages.size(), 2u);
  proto::Envelope answer;
  ASSERT_TRUE(answer.ParseFromString(messages[1].header));
  EXPECT_EQ(answer.response().result().values(0).integer(), 5) << answer.ShortDebugString();
  EXPECT_EQ(group_[0]->tables().parted_messages, 1u);
  impostor.close();
  EXPECT_TRUE(eventually([&] { return group_[0]->tables().parted_messages == 0; }));
  group_.expect_empty();
}

// Well-formed messages of every kind, as an honest peer sends them.
std::vector<proto::Envelope> honest_messages(const Agent& from, const Agent& to,
                                             const RRef<Counter>& counter) {
  std::vector<proto::Envelope> messages;
  const auto request = [&]() -> proto::Request& {
    proto::Request& added = *messages.emplace_back().mutable_request();
    added.set_call_id(messages.size());
    added.set_timeout_us(500'000);
    return added;
  };
  proto::Request& function = request();
  function.set_function(callee_of_function<&add>->name);
  function.set_signature(callee_of_function<&add>->signature_hash);
  function.mutable_arguments()->add_values()->set_integer(1);
  function.mutable_arguments()->add_values()->set_integer(2);
  proto::Request& method = request();
  method.set_method(callee_of_function<&Counter::increment>->name);
  method.set_signature(callee_of_function<&Counter::increment>->signature_hash);
  method.mutable_arguments()->add_values()->set_integer(1);
  to_proto(counter.handle()->rref(), *method.mutable_target());
  proto::Request& constructor = request();
  constructor.set_constructor(callee_of_class<Counter>->name);
  constructor.mutable_arguments()->add_values()->set_integer(1);
  to_proto(Id{from.services().self().incarnation, 1'000'001}, *constructor.mutable_result_rref());
  to_proto(Id{from.services().self().incarnation, 1'000'002}, *constructor.mutable_result_fork());
  constructor.set_order_key(3);
  proto::Request& fetch = request();
  fetch.set_fetch(true);
  to_proto(counter.handle()->rref(), *fetch.mutable_target());
  for (uint64_t owner :
       {to.services().self().incarnation, from.services().self().incarnation, uint64_t{99}}) {
    proto::Request& reference = request();
    reference.set_function(callee_of_function<&use>->name);
    reference.set_signature(callee_of_function<&use>->signature_hash);
    reference.mutable_arguments()->add_values()->set_reference(0);
    proto::Reference& sent = *reference.mutable_arguments()->add_references();
    to_proto(Id{owner, 5}, *sent.mutable_rref());
    to_proto(Id{from.services().self().incarnation, 1'000'003}, *sent.mutable_fork());
    sent.set_owner(owner);
    sent.set_registered(owner == from.services().self().incarnation);
    sent.set_type(value_type_name<Counter>());
  }
  for (uint32_t number = 0; number <= 7; ++number) {
    proto::ForkAdd fork;
    to_proto(Id{to.services().self().incarnation, 5}, *fork.mutable_rref());
    to_proto(Id{from.services().self().incarnation, 1'000'004}, *fork.mutable_fork());
    request().mutable_service()->set_number(number);
    messages.back().mutable_request()->mutable_service()->set_body(fork.SerializeAsString());
  }
  proto::Response& response = *messages.emplace_back().mutable_response();
  response.set_call_id(1);
  response.mutable_result()->add_values()->set_integer(1);
  messages.emplace_back().mutable_cancel()->set_call_id(1);
  return messages;
}

std::string mutate(std::string bytes, std::mt19937_64& random) {
  for (uint64_t changes = random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
        break;
      case 2:
        bytes.erase(at, random() % 4);
        break;
      default:
        bytes.insert(at, std::string(random() % 4, static_cast<char>(random())));
    }
  }
  return bytes;
}

TEST_F(HostilePeer, MutatedMessagesNeitherCrashNorStay) {
  RRef<Counter> counter = group_[1]->remote<Counter>("worker0", 0);
  counter.confirmed().wait();
  const std::vector<proto::Envelope> honest = honest_messages(*group_[1], *group_[0], counter);
  Impostor impostor(address_);
  impostor.open();
  impostor.send(hello().SerializeAsString());
  std::mt19937_64 random(20240607);
  for (int i = 0; i < 4000; ++i) {
    const std::string bytes = mutate(honest[random() % honest.size()].SerializeAsString(), random);
    // A Goodbye in another worker's name would be believed (only authentication prevents that), and end the
    // test.
    proto::Envelope parsed;
    if (parsed.ParseFromString(bytes) && parsed.has_goodbye()) continue;
    if (!impostor.send(bytes)) {
      impostor.open();
      impostor.send(hello().SerializeAsString());
    }
    if (i % 500 == 0) expect_serving();
  }
  impostor.close();
  expect_serving();
  // Forks that the impostor added belong to worker 1 until it is lost. Everything else ends by itself.
  group_.kill(1);
  const auto busy = [this] {
    const AgentTables tables = group_[0]->tables();
    return tables.pending_calls + tables.served_calls + tables.owned_rrefs + tables.held_forks +
           tables.unconfirmed_children;
  };
  eventually([&] { return busy() == 0; }, absl::Seconds(30));
  EXPECT_EQ(group_[0]->tables().served_calls, 0u);
  EXPECT_EQ(group_[0]->tables().pending_calls, 0u);
  EXPECT_EQ(group_[0]->tables().owned_rrefs, 0u);
  EXPECT_EQ(group_[0]->tables().held_forks, 0u);
  EXPECT_EQ(group_[0]->tables().unconfirmed_children, 0u);
}

// Two connections of one worker. The receiver reads the second one first.
class TwoConnections : public HostilePeer {
 protected:
  TwoConnections() {
    for (Impostor* impostor : {&first_, &second_}) impostor->open();
  }
  ~TwoConnections() override {
    for (Impostor* impostor : {&first_, &second_}) impostor->close();
  }

  Id id(uint64_t counter) const { return {group_[1]->services().self().incarnation, counter}; }

  // The Departures of worker 1 together with the impostors. Nothing was sent on its own connections 1 to 10.
  static proto::Departures departures(uint64_t newest, const std::map<uint64_t, uint64_t>& open) {
    proto::Departures sent;
    sent.set_newest(newest);
    for (uint64_t number = 1; number <= 10; ++number) sent.add_open()->set_number(number);
    for (const auto& [number, messages] : open) {
      proto::Departures::Connection& connection = *sent.add_open();
      connection.set_number(number);
      connection.set_messages(messages);
    }
    return sent;
  }

  proto::Envelope fork_delete(uint64_t fork, const proto::Departures& sent) const {
    proto::ForkDelete message;
    to_proto(id(kRref), *message.mutable_rref());
    to_proto(id(fork), *message.mutable_fork());
    *message.mutable_sent() = sent;
    proto::Envelope envelope;
    envelope.mutable_request()->set_call_id(fork);
    envelope.mutable_request()->mutable_service()->set_number(kForkDelete);
    envelope.mutable_request()->mutable_service()->set_body(message.SerializeAsString());
    return envelope;
  }

  proto::Envelope creation(uint64_t fork) const {
    proto::Envelope envelope;
    proto::Request& request = *envelope.mutable_request();
    request.set_call_id(fork + 1);
    request.set_constructor(callee_of_class<Counter>->name);
    request.mutable_arguments()->add_values()->set_integer(1);
    to_proto(id(kRref), *request.mutable_result_rref());
    to_proto(id(fork), *request.mutable_result_fork());
    return envelope;
  }

  // Waits for `count` envelopes on a connection, and returns them.
  static std::vector<proto::Envelope> answers(Impostor& impostor, std::size_t count) {
    std::vector<proto::Envelope> envelopes;
    for (const auto& message : impostor.listener().wait_for_messages(count)) {
      EXPECT_TRUE(envelopes.emplace_back().ParseFromString(message.header));
    }
    return envelopes;
  }
  static bool has_response(const std::vector<proto::Envelope>& envelopes, uint64_t call_id) {
    return std::any_of(envelopes.begin(), envelopes.end(), [call_id](const proto::Envelope& envelope) {
      return envelope.has_response() && envelope.response().call_id() == call_id;
    });
  }
  // Whether the call was answered. Heartbeats may arrive before the answer.
  static bool answered(Impostor& impostor, uint64_t call_id) {
    for (std::size_t count = 1; count < 100; ++count) {
      const std::vector<proto::Envelope> envelopes = answers(impostor, count);
      if (has_response(envelopes, call_id)) return true;
      if (envelopes.size() < count) return false;
    }
    return false;
  }

  // Waits, because the last message is counted only after its answer has been sent.
  void expect_nothing_remembered() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (group_[0]->tables().remembered_deletes > 0 && absl::Now() < deadline) std::this_thread::yield();
    EXPECT_EQ(group_[0]->tables().remembered_deletes, 0u);
  }

  static constexpr uint64_t kRref = 2'000'001, kFork = 2'000'002;
  Impostor first_{address_}, second_{address_};
};

TEST_F(TwoConnections, DeleteBeforeItsCreationIsReadLeavesNothing) {
  // The callee has admitted the first connection, and has read nothing of it after the Hello.
  const proto::Envelope first = hello(), second = hello();
  first_.send(first.SerializeAsString());
  const std::vector<proto::Envelope> greeting = answers(first_, 1);
  // A heartbeat may have come behind the Hello.
  ASSERT_FALSE(greeting.empty());
  ASSERT_TRUE(greeting.front().has_hello());
  second_.send(second.SerializeAsString());
  second_.send(fork_delete(kFork, departures(second.hello().connection(), {{first.hello().connection(), 1},
                                                                           {second.hello().connection(), 0}}))
                   .SerializeAsString());
  ASSERT_TRUE(answered(second_, kFork));
  EXPECT_EQ(group_[0]->tables().remembered_deletes, 1u);
  first_.send(creation(kFork).SerializeAsString());
  ASSERT_TRUE(answered(first_, kFork + 1));
  // No reference to the value is left, and no earlier message can arrive any more.
  group_.expect_empty();
  expect_nothing_remembered();
}

TEST_F(TwoConnections, ConnectionWhoseHelloIsUnreadIsWaitedFor) {
  const proto::Envelope first = hello(), second = hello();
  const uint64_t older = first.hello().connection(), newer = second.hello().connection();
  second_.send(second.SerializeAsString());
  second_.send(fork_delete(kFork, departures(newer, {{older, 1}, {newer, 0}})).SerializeAsString());
  ASSERT_TRUE(answered(second_, kFork));
  EXPECT_EQ(group_[0]->tables().remembered_deletes, 1u);
  first_.send(first.SerializeAsString());
  first_.send(creation(kFork).SerializeAsString());
  ASSERT_TRUE(answered(first_, kFork + 1));
  group_.expect_empty();
  expect_nothing_remembered();
}

TEST_F(TwoConnections, ConnectionThatEndedUnreadAtItsSenderIsRefused) {
  const proto::Envelope first = hello(), second = hello();
  const uint64_t newer = second.hello().connection();
  second_.send(second.SerializeAsString());
  // The first connection is not listed: it has ended at its sender.
  second_.send(fork_delete(kFork, departures(newer, {{newer, 0}})).SerializeAsString());
  ASSERT_TRUE(answered(second_, kFork));
  EXPECT_EQ(group_[0]->tables().remembered_deletes, 0u);
  first_.send(first.SerializeAsString());
  first_.send(creation(kFork).SerializeAsString());
  (void)first_.listener().wait_closed();
  EXPECT_EQ(answers(first_, 1).front().goodbye().reason().code(),
            static_cast<int>(absl::StatusCode::kUnavailable));
  group_.expect_empty();
}

TEST_F(TwoConnections, NumberOfAConnectionIsNeededAndUsedOnce) {
  proto::Envelope unnumbered = hello(), numbered = hello();
  unnumbered.mutable_hello()->clear_connection();
  first_.send(unnumbered.SerializeAsString());
  (void)first_.listener().wait_closed();
  EXPECT_EQ(answers(first_, 1).front().goodbye().reason().code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  first_.open();
  first_.send(numbered.SerializeAsString());
  EXPECT_TRUE(answers(first_, 1).front().has_hello());
  second_.send(numbered.SerializeAsString());
  (void)second_.listener().wait_closed();
  EXPECT_TRUE(answers(second_, 1).front().has_goodbye());
  expect_serving();
}

TEST_F(TwoConnections, EndlessListOfConnectionsIsRefused) {
  const proto::Envelope only = hello();
  first_.send(only.SerializeAsString());
  proto::Departures sent = departures(only.hello().connection(), {});
  for (uint64_t number = 0; number < Departures::kMaxConnections; ++number) sent.add_open();
  first_.send(fork_delete(kFork, sent).SerializeAsString());
  ASSERT_TRUE(answered(first_, kFork));
  EXPECT_EQ(group_[0]->tables().remembered_deletes, 0u);
  for (const proto::Envelope& envelope : answers(first_, 2)) {
    if (!envelope.has_response()) continue;
    EXPECT_EQ(envelope.response().status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  }
  expect_serving();
}

TEST_F(HostilePeer, ReferenceThatLiesAboutItsTypeIsNotCastTo) {
  // The reference says that the owner's Counter is an integer.
  RRef<Counter> counter = group_[1]->remote<Counter>("worker0", 0);
  counter.confirmed().wait();
  auto liar = std::make_shared<RRefHandle>(RRefHandle::State{
      group_[0]->rrefs().weak_from_this(), counter.handle()->rref(), Id(), group_[0]->services().self(),
      "int64", Future<void>(absl::OkStatus()), Future<void>(absl::OkStatus())});
  const absl::Status status = RRef<int64_t>(liar).to_here_async().result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THROW(RRef<int64_t>(liar).local_value(), Error);
}

}  // namespace
}  // namespace gradwire::rpc
