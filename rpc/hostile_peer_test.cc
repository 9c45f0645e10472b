#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <thread>

#include "proto/membership.pb.h"
#include "proto/rpc.pb.h"
#include "rpc/call.h"
#include "rpc/testing/group.h"
#include "store/hash_store.h"
#include "store/prefix_store.h"
#include "transport/descriptor.h"
#include "transport/process_counts.h"
#include "transport/recording_listener.h"
#include "transport/tcp/address.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/preface.h"
#include "transport/tcp/tcp_transport.h"

// What connects to an agent's port and is no honest agent.
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
    for (const char* key : {"log/0/0", "log/0/1"}) {
      proto::LogLine line;
      EXPECT_TRUE(line.ParseFromString(store::PrefixStore("rpc", store_).get(key)));
      if (line.join().worker().id() != 0) continue;
      for (const proto::Address& address : line.join().worker().addresses()) {
        if (address.transport() == "tcp") address_ = address.address();
      }
    }
    // Between the two there is a connection already: what a stranger does must not touch it.
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

  transport::Descriptor connect_socket() {
    auto addresses = transport::resolve_addresses(address_);
    EXPECT_TRUE(addresses.ok());
    const transport::SocketAddress& to = addresses->front();
    transport::Descriptor socket(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), to.get(), to.length), 0);
    return socket;
  }

  static bool closed_by_agent(const transport::Descriptor& socket) {
    timeval patience = {60, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char bytes[512];
    ssize_t got = 0;
    while ((got = ::recv(socket.get(), bytes, sizeof(bytes), 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

  proto::Envelope hello() const {
    proto::Envelope envelope;
    envelope.mutable_hello()->set_protocol_version(1);
    envelope.mutable_hello()->set_id(1);
    envelope.mutable_hello()->set_name("worker1");
    envelope.mutable_hello()->set_incarnation(group_[1]->self().incarnation);
    envelope.mutable_hello()->set_to_incarnation(group_[0]->self().incarnation);
    return envelope;
  }

  std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  testing::Group group_;
  std::string address_;
};

TEST_F(HostilePeer, GarbageAndEndlessFramesEndTheirConnectionAlone) {
  const std::string preface = transport::Preface{.token = transport::random_token()}.encode();
  std::string huge = preface + transport::encode_frame_start(transport::Message());
  for (int i = 0; i < 8; ++i)
    huge[preface.size() + 8 + i] = static_cast<char>((uint64_t{1} << 60) >> (8 * i));
  const int descriptors = transport::count_descriptors();
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(50'000, '\xff'), huge}) {
    transport::Descriptor socket = connect_socket();
    ASSERT_GT(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(closed_by_agent(socket));
  }
  expect_serving();
  // A lingering connection's end here follows that of its other end.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (transport::count_descriptors() != descriptors && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(transport::count_descriptors(), descriptors);
  group_.expect_empty();
}

class Impostor {
 public:
  explicit Impostor(std::string address)
      : address_(std::move(address)), transport_(transport::make_tcp_transport()) {}
  ~Impostor() { transport_->shutdown(); }

  void open() {
    listener_ = std::make_shared<transport::RecordingListener>();
    auto connection = transport_->connect(address_, listener_, absl::Seconds(30));
    ASSERT_TRUE(connection.ok());
    connection_ = *connection;
  }
  bool send(const std::string& header) { return connection_->send({header, {}}).ok(); }
  void close() {
    connection_->close(absl::CancelledError("done"), absl::Seconds(1));
    (void)listener_->wait_closed();
  }
  transport::RecordingListener& listener() { return *listener_; }

 private:
  const std::string address_;
  std::unique_ptr<transport::Transport> transport_;
  std::shared_ptr<transport::RecordingListener> listener_;
  std::shared_ptr<transport::Connection> connection_;
};

TEST_F(HostilePeer, StrangersAreRefusedWithAReason) {
  proto::Envelope no_hello, version = hello(), stranger = hello(), stale = hello(), asker = hello();
  no_hello.mutable_request()->set_function("x");
  version.mutable_hello()->set_protocol_version(99);
  stranger.mutable_hello()->set_name("mallory");
  asker.mutable_hello()->set_incarnation(0);
  stale.mutable_hello()->set_to_incarnation(1);
  const std::pair<proto::Envelope, absl::StatusCode> cases[] = {
      {no_hello, absl::StatusCode::kInvalidArgument}, {version, absl::StatusCode::kFailedPrecondition},
      {stranger, absl::StatusCode::kNotFound},        {stale, absl::StatusCode::kAborted},
      {asker, absl::StatusCode::kNotFound},
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
  }
  expect_serving();
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
  to_proto(Id{from.self().incarnation, 1'000'001}, *constructor.mutable_result_rref());
  to_proto(Id{from.self().incarnation, 1'000'002}, *constructor.mutable_result_fork());
  constructor.set_order_key(3);
  proto::Request& fetch = request();
  fetch.set_fetch(true);
  to_proto(counter.handle()->rref(), *fetch.mutable_target());
  for (uint64_t owner : {to.self().incarnation, from.self().incarnation, uint64_t{99}}) {
    proto::Request& reference = request();
    reference.set_function(callee_of_function<&use>->name);
    reference.set_signature(callee_of_function<&use>->signature_hash);
    reference.mutable_arguments()->add_values()->set_reference(0);
    proto::Reference& sent = *reference.mutable_arguments()->add_references();
    to_proto(Id{owner, 5}, *sent.mutable_rref());
    to_proto(Id{from.self().incarnation, 1'000'003}, *sent.mutable_fork());
    sent.set_owner(owner);
    sent.set_registered(owner == from.self().incarnation);
    sent.set_type(value_type_name<Counter>());
  }
  for (uint32_t number = 0; number <= 7; ++number) {
    proto::ForkAdd fork;
    to_proto(Id{to.self().incarnation, 5}, *fork.mutable_rref());
    to_proto(Id{from.self().incarnation, 1'000'004}, *fork.mutable_fork());
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
  const std::string introduction = hello().SerializeAsString();
  Impostor impostor(address_);
  impostor.open();
  impostor.send(introduction);
  std::mt19937_64 random(20240607);
  for (int i = 0; i < 4000; ++i) {
    const std::string bytes = mutate(honest[random() % honest.size()].SerializeAsString(), random);
    // An impostor that says goodbye in the other's name is believed: that is what authentication is for.
    proto::Envelope parsed;
    if (parsed.ParseFromString(bytes) && parsed.has_goodbye()) continue;
    if (!impostor.send(bytes)) {
      impostor.open();
      impostor.send(introduction);
    }
    if (i % 500 == 0) expect_serving();
  }
  impostor.close();
  expect_serving();
  // Forks that the impostor added are the peer's until it is lost; what else it left ends by itself.
  group_.kill(1);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  const auto busy = [this] {
    const AgentTables tables = group_[0]->tables();
    return tables.pending_calls + tables.served_calls + tables.owned_rrefs + tables.held_forks +
           tables.unconfirmed_children;
  };
  while (busy() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(group_[0]->tables().served_calls, 0u);
  EXPECT_EQ(group_[0]->tables().pending_calls, 0u);
  EXPECT_EQ(group_[0]->tables().owned_rrefs, 0u);
  EXPECT_EQ(group_[0]->tables().held_forks, 0u);
  EXPECT_EQ(group_[0]->tables().unconfirmed_children, 0u);
}

TEST_F(HostilePeer, ReferenceThatLiesAboutItsTypeIsNotCastTo) {
  // The owner is told that its Counter is an integer.
  RRef<Counter> counter = group_[1]->remote<Counter>("worker0", 0);
  counter.confirmed().wait();
  auto liar = std::make_shared<RRefHandle>(RRefHandle::Parts{
      group_[0]->rrefs().weak_from_this(), counter.handle()->rref(), Id(), group_[0]->self(), "int64",
      Future<void>(absl::OkStatus()), Future<void>(absl::OkStatus())});
  const absl::Status status = RRef<int64_t>(liar).to_here_async().result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THROW(RRef<int64_t>(liar).local_value(), Error);
}

}  // namespace
}  // namespace gradwire::rpc
