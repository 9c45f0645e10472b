#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/rpc/testing/ignoring_sink.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"

// Bounds the memory that a peer can take before it is admitted, or by naming workers that do not exist.
namespace gradwire::rpc {
namespace {

constexpr uint64_t kUnknown = 77;
constexpr uint64_t kKiB = 1024;

int64_t sum(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(sum)

// The peer of an agent's connection, under the control of the test.
class ControlledPeer {
 public:
  ControlledPeer() : transport_(transport::make_tcp_transport()) {}
  ~ControlledPeer() { transport_->shutdown(); }

  void open(const std::string& address) {
    auto connection = transport_->connect(address, listener_, absl::Seconds(30));
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
  }
  void hello(const Worker& from, const Worker& to) {
    proto::Envelope envelope;
    proto::Hello& hello = *envelope.mutable_hello();
    hello.set_protocol_version(kProtocolVersion);
    hello.set_id(from.id);
    hello.set_name(from.name);
    hello.set_incarnation(from.incarnation);
    hello.set_to_incarnation(to.incarnation);
    // Several impostors may act as the same worker, whose connections must have different numbers.
    static uint64_t last_connection = 0;
    hello.set_connection(++last_connection);
    EXPECT_TRUE(send(envelope));
  }
  // Sends a request whose header has about `bytes` bytes. It carries a reference to a value of `owner`,
  // unless that is 0.
  bool request(uint64_t id, uint64_t bytes, uint64_t owner = 0) {
    proto::Envelope envelope;
    envelope.mutable_request()->set_call_id(id);
    envelope.mutable_request()->set_function(std::string(bytes, 'f'));
    if (owner != 0) envelope.mutable_request()->mutable_arguments()->add_references()->set_owner(owner);
    return send(envelope);
  }
  bool send(const proto::Envelope& envelope) { return send(envelope.SerializeAsString()); }
  bool send(std::string header) { return connection_->send({std::move(header), {}}).ok(); }
  transport::RecordingListener& listener() { return *listener_; }
  // Waits for the end of the connection. Returns the code of the agent's Goodbye; OK if none arrived.
  absl::StatusCode goodbye() {
    (void)listener_->wait_closed();
    absl::StatusCode code = absl::StatusCode::kOk;
    for (const transport::Message& message : listener_->wait_for_messages(1)) {
      proto::Envelope envelope;
      if (envelope.ParseFromString(message.header) && envelope.has_goodbye())
        code = static_cast<absl::StatusCode>(envelope.goodbye().reason().code());
    }
    return code;
  }

 private:
  const std::unique_ptr<transport::Transport> transport_;
  const std::shared_ptr<transport::RecordingListener> listener_ =
      std::make_shared<transport::RecordingListener>();
  std::shared_ptr<transport::Connection> connection_;
};

class CountingSink : public testing::IgnoringSink {
 public:
  void on_request(const Worker&, const std::shared_ptr<Link>&, EnvelopePtr envelope,
                  std::vector<transport::Buffer>) override {
    MutexLock lock(mutex_);
    ids_.push_back((*envelope)->request().call_id());
  }

  std::vector<uint64_t> ids() {
    MutexLock lock(mutex_);
    return ids_;
  }

 private:
  Mutex mutex_;
  std::vector<uint64_t> ids_ ABSL_GUARDED_BY(mutex_);
};

class HeldBound : public ::testing::Test {
 protected:
  void start(Limits limits) {
    Peers::Options options;
    options.limits = limits;
    std::vector<std::unique_ptr<transport::Transport>> transports;
    transports.push_back(transport::make_tcp_transport());
    peers_ = std::make_unique<Peers>(std::move(transports), sink_, timers_, options);
    auto record = peers_->listen(self_);
    ASSERT_TRUE(record.ok()) << record.status();
    record_ = *record;
    address_ = record_.addresses(0).address();
    peers_->set_workers(self_, {{self_, record_}}, {});
  }
  void TearDown() override {
    peers_->shutdown(absl::CancelledError("done"), absl::Seconds(5));
    EXPECT_EQ(tables().held_bytes, 0u);
    EXPECT_EQ(tables().unadmitted_links, 0u);
    EXPECT_EQ(tables().links, 0u);
    EXPECT_EQ(tables().numbered_links, 0u);
  }
  void join(uint64_t incarnation) {
    proto::WorkerRecord record = record_;
    record.set_incarnation(incarnation);
    peers_->add_worker(
        {{absl::StrCat("worker", incarnation), static_cast<int>(incarnation), incarnation}, record});
  }
  AgentTables tables() const {
    AgentTables tables;
    peers_->count(tables);
    return tables;
  }
  Worker unknown() const { return {absl::StrCat("worker", kUnknown), static_cast<int>(kUnknown), kUnknown}; }

  const Worker self_{"self", 0, 11};
  CountingSink sink_;
  TimerQueue timers_;
  std::unique_ptr<Peers> peers_;
  proto::WorkerRecord record_;
  std::string address_;
};

TEST_F(HeldBound, HeadersCountOnOneConnection) {
  Limits limits;
  limits.max_held_bytes = 256 * kKiB;
  start(limits);
  ControlledPeer impostor;
  impostor.open(address_);
  impostor.hello(unknown(), self_);
  for (uint64_t id = 1; id <= 16; ++id) (void)impostor.request(id, 40 * kKiB);
  EXPECT_EQ(impostor.goodbye(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(eventually([&] { return tables().held_bytes == 0; }));
}

TEST_F(HeldBound, AllConnectionsTogetherHaveABound) {
  Limits limits;
  limits.max_held_bytes_in_all = 256 * kKiB;
  start(limits);
  ControlledPeer first, second;
  first.open(address_);
  first.hello(unknown(), self_);
  EXPECT_TRUE(first.request(1, 150 * kKiB));
  ASSERT_TRUE(eventually([&] { return tables().held_bytes >= 150 * kKiB; }));
  second.open(address_);
  second.hello(unknown(), self_);
  (void)second.request(1, 150 * kKiB);
  EXPECT_EQ(second.goodbye(), absl::StatusCode::kResourceExhausted);
  // The room of the refused connection is free again; the other connection keeps its own.
  EXPECT_TRUE(eventually([&] { return tables().held_bytes < 200 * kKiB; }));
  EXPECT_GE(tables().held_bytes, 150 * kKiB);
  join(kUnknown);
  EXPECT_TRUE(eventually([&] { return sink_.ids().size() == 1; }));
}

TEST_F(HeldBound, RoomComesBackWithEachDelivery) {
  Limits limits;
  limits.max_held_bytes = 256 * kKiB;
  start(limits);
  ControlledPeer impostor;
  impostor.open(address_);
  impostor.hello(unknown(), self_);
  EXPECT_TRUE(impostor.request(1, 200 * kKiB));
  ASSERT_TRUE(eventually([&] { return tables().held_bytes >= 200 * kKiB; }));
  EXPECT_TRUE(sink_.ids().empty());
  join(kUnknown);
  ASSERT_TRUE(eventually([&] { return sink_.ids().size() == 1; }));
  EXPECT_EQ(tables().held_bytes, 0u);
  // Repeat on the same connection: each request names a worker that joins only after it.
  for (uint64_t id = 2; id <= 4; ++id) {
    EXPECT_TRUE(impostor.request(id, 200 * kKiB, 100 + id));
    ASSERT_TRUE(eventually([&] { return tables().held_bytes >= 200 * kKiB; }));
    join(100 + id);
    ASSERT_TRUE(eventually([&] { return sink_.ids().size() == id; }));
    EXPECT_TRUE(eventually([&] { return tables().held_bytes == 0; }));
  }
  EXPECT_EQ(sink_.ids(), (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_F(HeldBound, MessageBehindAHeldHelloIsParsedOnlyOnceAdmitted) {
  start(Limits());
  ControlledPeer impostor;
  impostor.open(address_);
  impostor.hello(unknown(), self_);
  // Each value takes two bytes on the wire, and about a hundred once it is parsed.
  proto::Envelope many;
  for (int i = 0; i < 100'000; ++i) many.mutable_request()->mutable_arguments()->add_values();
  EXPECT_TRUE(impostor.send(many));
  EXPECT_TRUE(impostor.send("\xff not an envelope"));
  ASSERT_TRUE(eventually([&] { return tables().held_bytes >= 200'000; }));
  EXPECT_LT(tables().held_bytes, 1024 * kKiB);
  EXPECT_EQ(impostor.listener().closed_count(), 0);
  join(kUnknown);
  (void)impostor.listener().wait_closed();
  EXPECT_TRUE(eventually([&] { return tables().held_bytes == 0; }));
}

TEST_F(HeldBound, FirstMessageIsAHelloOfItsSize) {
  start(Limits());
  Worker long_name = unknown();
  long_name.name = std::string(2 * Link::kMaxHelloBytes, 'n');
  ControlledPeer large, padded, early;
  large.open(address_);
  large.hello(long_name, self_);
  (void)large.listener().wait_closed();
  // Only the size of this Hello is wrong.
  padded.open(address_);
  proto::Envelope hello;
  hello.mutable_hello()->set_protocol_version(kProtocolVersion);
  hello.mutable_hello()->set_incarnation(unknown().incarnation);
  hello.mutable_hello()->set_id(unknown().id);
  hello.mutable_hello()->set_name(unknown().name);
  hello.mutable_hello()->set_to_incarnation(self_.incarnation);
  hello.mutable_hello()->set_connection(1);
  hello.GetReflection()->MutableUnknownFields(&hello)->AddLengthDelimited(
      1000, std::string(2 * Link::kMaxHelloBytes, 'n'));
  EXPECT_TRUE(padded.send(hello));
  // It is refused before it is parsed, and is not held until the log names its sender.
  std::size_t most_held = 0;
  EXPECT_TRUE(eventually([&] {
    most_held = std::max(most_held, tables().held_bytes);
    return padded.listener().closed_count() > 0;
  }));
  EXPECT_EQ(most_held, 0u);
  early.open(address_);
  EXPECT_TRUE(early.request(1, 10));
  EXPECT_EQ(early.goodbye(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(eventually([&] { return tables().unadmitted_links == 0; }));
  EXPECT_EQ(tables().held_bytes, 0u);
}

TEST_F(HeldBound, UnadmittedConnectionsAreCountedAndFew) {
  Limits limits;
  limits.max_unadmitted = 3;
  start(limits);
  join(kUnknown);
  ControlledPeer silent[3];
  for (ControlledPeer& impostor : silent) impostor.open(address_);
  ASSERT_TRUE(eventually([&] { return tables().unadmitted_links == 3; }));
  ControlledPeer refused;
  refused.open(address_);
  (void)refused.listener().wait_closed();
  EXPECT_EQ(tables().unadmitted_links, 3u);
  // Once its Hello is admitted, a connection does not count against the limit.
  silent[0].hello(unknown(), self_);
  ASSERT_TRUE(eventually([&] { return tables().unadmitted_links == 2; }));
  ControlledPeer next;
  next.open(address_);
  EXPECT_TRUE(eventually([&] { return tables().unadmitted_links == 3; }));
}

RpcBackendOptions small_options(const std::shared_ptr<store::Store>& store) {
  RpcBackendOptions options;
  options.store = store;
  options.transports = {"tcp"};
  options.limits.max_held_bytes = 1024 * kKiB;
  return options;
}

// Returns the maximum of held_bytes while `floods` ran.
template <class Floods>
uint64_t most_held(const Agent& agent, Floods floods) {
  std::atomic<bool> done{false};
  std::thread flooder([&] {
    floods();
    done = true;
  });
  uint64_t most = 0;
  while (!done) most = std::max<uint64_t>(most, agent.tables().held_bytes);
  flooder.join();
  return most;
}

std::string published_address_of(const std::shared_ptr<store::Store>& store, int position) {
  proto::LogLine line;
  EXPECT_TRUE(line.ParseFromString(store::PrefixStore("rpc", store).get(absl::StrCat("log/0/", position))));
  for (const proto::Address& address : line.join().worker().addresses()) {
    if (address.transport() == "tcp") return address.address();
  }
  return "";
}

TEST(HostileMember, CannotMakeTheAcceptorHoldMuch) {
  auto store = std::make_shared<store::HashStore>();
  testing::Group group(1, small_options(store));
  const Worker self = group[0]->services().self();
  const std::string address = published_address_of(store, 0);
  const uint64_t most = most_held(*group[0], [&] {
    for (int connection = 0; connection < 4; ++connection) {
      ControlledPeer impostor;
      impostor.open(address);
      impostor.hello({"mallory", 5, kUnknown}, self);
      for (uint64_t id = 1; id <= 64 && impostor.request(id, 64 * kKiB); ++id) {
      }
      EXPECT_EQ(impostor.goodbye(), absl::StatusCode::kResourceExhausted);
      // The bound applies to one connection, and the acceptor may see its end later than the opener. So wait
      // before the next connection.
      EXPECT_TRUE(eventually([&] { return group[0]->tables().held_bytes == 0; }));
    }
  });
  EXPECT_LE(most, 1024 * kKiB);
  EXPECT_TRUE(eventually([&] { return group[0]->tables().held_bytes == 0; }));
  EXPECT_EQ(group[0]->rpc_sync<&sum>("worker0", 2, 3), 5);
}

// A member of the group that answers every Hello, and then sends messages that must be held.
class HostileListener : public transport::ConnectionListener {
 public:
  HostileListener(Worker self, std::shared_ptr<transport::Connection> connection)
      : self_(std::move(self)), connection_(std::move(connection)) {}
  void on_message(transport::Connection&, transport::Message message) override {
    proto::Envelope received;
    if (!received.ParseFromString(message.header)) return;
    if (!received.has_hello()) return;
    proto::Envelope answer;
    *answer.mutable_hello() = received.hello();
    answer.mutable_hello()->set_id(self_.id);
    answer.mutable_hello()->set_name(self_.name);
    answer.mutable_hello()->set_incarnation(self_.incarnation);
    answer.mutable_hello()->set_to_incarnation(0);
    (void)connection_->send({answer.SerializeAsString(), {}});
    for (uint64_t id = 1; id <= 64; ++id) {
      proto::Envelope envelope;
      envelope.mutable_request()->set_call_id(id);
      envelope.mutable_request()->set_function(std::string(64 * kKiB, 'f'));
      envelope.mutable_request()->mutable_arguments()->add_references()->set_owner(kUnknown);
      (void)connection_->send({envelope.SerializeAsString(), {}});
    }
  }
  void on_closed(transport::Connection&, absl::Status) override { closed_ = true; }

  bool closed() const { return closed_; }

 private:
  const Worker self_;
  const std::shared_ptr<transport::Connection> connection_;
  std::atomic<bool> closed_{false};
};

TEST(HostileMember, CannotMakeTheOpenerHoldMuch) {
  auto store = std::make_shared<store::HashStore>();
  const std::shared_ptr<Agent> agent = Agent::start("victim", -1, 0, small_options(store));
  const Worker mallory{"mallory", -1, kUnknown + 1};
  Mutex mutex;
  std::shared_ptr<HostileListener> listener;
  std::unique_ptr<transport::Transport> transport = transport::make_tcp_transport();
  const auto address = transport->listen([&](const std::shared_ptr<transport::Connection>& connection) {
    MutexLock lock(mutex);
    return listener = std::make_shared<HostileListener>(mallory, connection);
  });
  ASSERT_TRUE(address.ok()) << address.status();
  proto::WorkerRecord record;
  record.set_name(mallory.name);
  record.set_id(mallory.id);
  record.set_incarnation(mallory.incarnation);
  record.add_addresses()->set_transport("tcp");
  record.mutable_addresses(0)->set_address(*address);
  Directory directory(std::make_shared<store::PrefixStore>("rpc", store));
  const auto joined = directory.join(mallory, 0, record, absl::Seconds(60),
                                     [](const auto&, absl::Duration) { return Directory::Life::kAlive; });
  ASSERT_TRUE(joined.ok()) << joined.status();
  agent->wait_for_worker("mallory", absl::Seconds(60));
  const uint64_t most = most_held(*agent, [&] {
    const Destination to = Destination("mallory").with_timeout(absl::Seconds(60));
    // The connection must end before the call expires.
    const absl::Status status = status_of([&] { agent->rpc_sync<&sum>(to, 2, 3); });
    EXPECT_NE(status.code(), absl::StatusCode::kOk);
    EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  });
  EXPECT_LE(most, 1024 * kKiB);
  EXPECT_TRUE(eventually([&] { return agent->tables().held_bytes == 0; }));
  // Wait without the lock: the victim connects again, and the thread that accepts, which needs the lock, also
  // reports the end.
  std::shared_ptr<HostileListener> last;
  {
    MutexLock lock(mutex);
    last = listener;
  }
  ASSERT_NE(last, nullptr);
  EXPECT_TRUE(eventually([&] { return last->closed(); }));
  directory.stop();
  agent->shutdown(/*graceful=*/false);
  transport->shutdown();
}

}  // namespace
}  // namespace gradwire::rpc
