// Agents of one process, and observers of them over real sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/inspect/job_directory.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/inspect/observer.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/policy/policy_text.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::rpc {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr char kToken[] = "the token of this test, known to its members";

// A gate at which handlers wait, so that tests see calls in progress.
class Gate {
 public:
  static Gate& instance() {
    static auto* gate = new Gate;
    return *gate;
  }
  Future<void> wait() {
    MutexLock lock(mutex_);
    return promise_->future();
  }
  void open() {
    std::shared_ptr<Promise<void>> opened;
    {
      MutexLock lock(mutex_);
      opened = std::exchange(promise_, std::make_shared<Promise<void>>());
    }
    opened->set_value();
  }

 private:
  Mutex mutex_;
  std::shared_ptr<Promise<void>> promise_ ABSL_GUARDED_BY(mutex_) = std::make_shared<Promise<void>>();
};

Future<void> wait_at_gate() { return Gate::instance().wait(); }
GRADWIRE_RPC(wait_at_gate)
int64_t pass_on(const std::string& to) {
  Agent::current()->rpc_sync<&wait_at_gate>(Destination(to).with_timeout(absl::Seconds(100)));
  return 1;
}
GRADWIRE_RPC(pass_on)

// Its methods run one at a time.
struct Desk {
  int64_t work() {
    Gate::instance().wait().wait();
    return 1;
  }
};
GRADWIRE_RPC_SERIAL_CLASS(Desk)
GRADWIRE_RPC_METHOD(Desk, work)

int64_t next_number(int64_t x) { return x + 1; }
GRADWIRE_RPC(next_number)

// An extension whose state takes long to read while `held` is set.
class SlowState : public AgentExtension {
 public:
  static inline std::atomic<absl::Notification*> held{nullptr};
  static inline std::atomic<int> reading{0};
  static inline std::atomic<int> read_on_duty{0};

  absl::string_view name() const override { return "slow state"; }
  bool serves(uint32_t /*service*/) const override { return false; }
  void serve(ServiceCall /*call*/) override {}
  void inspect(uint32_t /*most*/, proto::AgentState& /*state*/) const override {
    if (on_duty()) ++read_on_duty;
    absl::Notification* const go_on = held;
    if (go_on == nullptr) return;
    ++reading;
    go_on->WaitForNotification();
  }
};
[[maybe_unused]] const bool slow_state_is_registered = [] {
  register_extension(
      [](AgentServices&) -> std::unique_ptr<AgentExtension> { return std::make_unique<SlowState>(); });
  return true;
}();

class InspectTest : public ::testing::Test {
 protected:
  static RpcBackendOptions with_store(const std::shared_ptr<store::Store>& store,
                                      RpcBackendOptions options = {}) {
    options.store = store;
    return options;
  }
  std::vector<proto::WorkerRecord> workers() {
    std::vector<proto::WorkerRecord> records;
    const auto entries = JobDirectory(store_).read(kTimeout);
    EXPECT_TRUE(entries.ok()) << entries.status();
    if (!entries.ok()) return records;
    for (const JobDirectory::Entry& entry : *entries) records.push_back(entry.record);
    return records;
  }
  static std::unique_ptr<Observer> observer(const Observer::Options& options = {}) {
    auto opened = Observer::open(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  // Asks until `done` is true for the answers.
  static std::vector<proto::AgentState> ask_until(
      Observer& observer, const std::vector<proto::WorkerRecord>& workers,
      const std::function<bool(const std::vector<proto::AgentState>&)>& done) {
    std::vector<proto::AgentState> states;
    EXPECT_TRUE(eventually([&] {
      states.clear();
      for (Observer::Answer& answer : observer.ask(workers, kTimeout)) {
        // Too soon after the last question.
        if (absl::IsResourceExhausted(answer.status())) return false;
        EXPECT_TRUE(answer.ok()) << answer.status();
        if (!answer.ok()) return false;
        states.push_back(*std::move(answer));
      }
      return done(states);
    }));
    return states;
  }

  const std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
};

TEST_F(InspectTest, AnObserverSeesAllWorkersAndChangesNothing) {
  testing::Group group(2, with_store(store_));
  const Future<void> call = group[0]->rpc_async<&wait_at_gate>("worker1");
  const std::unique_ptr<Observer> watching = observer();
  // The workers read their tables at different times.
  const auto states = ask_until(*watching, workers(), [](const auto& all) {
    return all[1].served_total() == 1 && all[0].peers_size() == 2 && all[0].peers(1).links_size() == 1 &&
           all[0].peers(1).links(0).bytes_received() > 0 && all[0].pending_size() == 1;
  });
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].name(), "worker0");
  EXPECT_EQ(states[1].id(), 1);
  EXPECT_EQ(states[0].pid(), getpid());
  EXPECT_EQ(states[0].members(), 2u);
  ASSERT_EQ(states[0].peers_size(), 2);
  const proto::PeerState& peer = states[0].peers(1);
  EXPECT_EQ(peer.name(), "worker1");
  EXPECT_EQ(peer.state(), proto::PeerState::ALIVE);
  EXPECT_TRUE(peer.same_host());
  ASSERT_EQ(peer.links_size(), 1);
  EXPECT_TRUE(peer.links(0).in_use());
  EXPECT_GT(peer.links(0).bytes_sent(), 0u);
  EXPECT_GT(peer.links(0).bytes_received(), 0u);
  EXPECT_EQ(peer.links(0).no_room_us(), -1);
  EXPECT_EQ(peer.window_calls(), 1u);
  EXPECT_GT(states[0].store().calls(), 0u);
  EXPECT_EQ(states[0].store().open_us(), -1);
  EXPECT_FALSE(states[0].store().description().empty());
  const Exchange exchange = watching->last_exchange(states[0].incarnation());
  EXPECT_LE(exchange.asked, absl::FromUnixMicros(states[0].wall_us() + 1));
  EXPECT_GE(exchange.answered, absl::FromUnixMicros(states[0].wall_us()));
  EXPECT_EQ(watching->last_exchange(1).asked, absl::InfinitePast());
  ASSERT_EQ(states[0].pending_size(), 1);
  ASSERT_EQ(states[1].served_size(), 1);
  EXPECT_THAT(states[0].pending(0).callee(), HasSubstr("wait_at_gate"));
  EXPECT_EQ(states[0].pending(0).identity().caller(), states[0].incarnation());
  EXPECT_EQ(states[0].pending(0).identity().call_id(), states[1].served(0).identity().call_id());
  EXPECT_EQ(states[0].pending(0).peer(), states[1].incarnation());
  EXPECT_GT(states[0].pending(0).left_us(), 0);
  ASSERT_EQ(states[1].functions_size(), 1);
  EXPECT_EQ(states[1].functions(0).served(), 1u);
  // It is in nobody's group.
  for (const std::shared_ptr<Agent>& agent : {group[0], group[1]}) {
    EXPECT_EQ(agent->get_worker_infos().size(), 2u);
    EXPECT_EQ(agent->tables().observers, 1u);
  }
  Gate::instance().open();
}

TEST_F(InspectTest, ReadingTheStateDelaysNoCall) {
  testing::Group group(2, with_store(store_));
  absl::Notification go_on;
  SlowState::reading = 0;
  SlowState::held = &go_on;
  std::thread watcher([&] {
    const std::unique_ptr<Observer> watching = observer();
    for (const Observer::Answer& answer : watching->ask(workers(), kTimeout)) EXPECT_TRUE(answer.ok());
  });
  EXPECT_TRUE(eventually([] { return SlowState::reading == 2; }));
  for (const char* to : {"worker0", "worker1"})
    EXPECT_EQ(group[0]->rpc_sync<&next_number>(Destination(to).with_timeout(kTimeout), int64_t{1}), 2);
  SlowState::held = nullptr;
  go_on.Notify();
  watcher.join();
  EXPECT_EQ(SlowState::read_on_duty, 0);
}

TEST_F(InspectTest, CallsThatEndedAreCountedByTheirTime) {
  testing::Group group(2, with_store(store_));
  const Future<void> call = group[0]->rpc_async<&wait_at_gate>("worker1");
  const auto counted = [](const proto::AgentState& state) {
    int64_t calls = 0;
    for (const proto::NamedNumber& number : state.statistics()) {
      if (absl::StartsWith(number.name(), kCallBucket)) calls += number.value();
    }
    return calls;
  };
  const std::unique_ptr<Observer> watching = observer();
  const auto before =
      ask_until(*watching, workers(), [](const auto& all) { return all[1].served_total() == 1; });
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(counted(before[0]), 0);
  Gate::instance().open();
  call.wait();
  const auto after = ask_until(*watching, workers(), [&](const auto& all) { return counted(all[0]) > 0; });
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(counted(after[0]), 1);
  EXPECT_EQ(counted(after[1]), 0);
}

TEST_F(InspectTest, NestedCallsNameTheirParents) {
  testing::Group group(3, with_store(store_));
  const Future<int64_t> call = group[0]->rpc_async<&pass_on>("worker1", std::string("worker2"));
  const std::unique_ptr<Observer> watching = observer();
  const auto states = ask_until(*watching, workers(), [](const auto& all) {
    return all[2].served_total() == 1 && all[2].served(0).stage() == proto::CallSummary::RUNNING;
  });
  ASSERT_EQ(states.size(), 3u);
  ASSERT_EQ(states[1].pending_size(), 1);
  const proto::CallOrigin& parent = states[1].pending(0).parent();
  EXPECT_EQ(parent.kind(), proto::CallOrigin::CALL);
  EXPECT_EQ(parent.incarnation(), states[0].incarnation());
  EXPECT_EQ(parent.number(), states[0].pending(0).identity().call_id());
  EXPECT_EQ(states[0].pending(0).parent().kind(), proto::CallOrigin::NONE);
  EXPECT_EQ(states[1].served(0).stage(), proto::CallSummary::NESTED);
  EXPECT_EQ(states[2].served(0).stage(), proto::CallSummary::RUNNING);
  Gate::instance().open();
}

TEST_F(InspectTest, CallThatWaitsForItsTurnNamesTheOneThatRuns) {
  testing::Group group(2, with_store(store_));
  {
    const RRef<Desk> desk = group[0]->remote<Desk>("worker1");
    const std::vector<Future<int64_t>> calls = {desk.rpc_async<&Desk::work>(), desk.rpc_async<&Desk::work>()};
    const std::unique_ptr<Observer> watching = observer();
    const auto states = ask_until(*watching, workers(), [](const auto& all) {
      return all[1].served_size() == 2 &&
             (all[1].served(0).has_waits_for() || all[1].served(1).has_waits_for());
    });
    ASSERT_EQ(states.size(), 2u);
    const proto::CallSummary& waiting = states[1].served(states[1].served(0).has_waits_for() ? 0 : 1);
    const proto::CallSummary& running = states[1].served(states[1].served(0).has_waits_for() ? 1 : 0);
    EXPECT_EQ(waiting.stage(), proto::CallSummary::QUEUED);
    EXPECT_EQ(waiting.waits_for().call_id(), running.identity().call_id());
    EXPECT_THAT(waiting.waits_for_callee(), HasSubstr("work"));
    EXPECT_EQ(states[1].rrefs_total(), 1u);
    ASSERT_EQ(states[1].rrefs_size(), 1);
    EXPECT_THAT(states[1].rrefs(0).type(), HasSubstr("Desk"));
    EXPECT_EQ(states[1].rrefs(0).holder(), states[0].incarnation());
    ASSERT_EQ(states[0].held_size(), 1);
    EXPECT_EQ(states[0].held(0).owner(), states[1].incarnation());
    for (const Future<int64_t>& call : calls) {
      EXPECT_TRUE(eventually([&] {
        Gate::instance().open();
        return call.done();
      }));
    }
    // The turn is over: nothing is remembered that waits.
    const auto later =
        ask_until(*watching, workers(), [](const auto& all) { return all[1].served_total() == 0; });
  }
}

TEST_F(InspectTest, ListsAreBoundedAndTheOldestCallsAreKept) {
  testing::Group group(2, with_store(store_));
  std::vector<Future<void>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(group[0]->rpc_async<&wait_at_gate>("worker1"));
  const std::unique_ptr<Observer> watching = observer({.most = 3});
  const auto states =
      ask_until(*watching, workers(), [](const auto& all) { return all[1].served_total() == 20; });
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].pending_total(), 20u);
  EXPECT_EQ(states[0].pending_size(), 3);
  EXPECT_EQ(states[1].served_size(), 3);
  EXPECT_GE(states[0].pending(0).age_us(), states[0].pending(2).age_us());
  EXPECT_EQ(states[0].functions(0).pending(), 20u);
  Gate::instance().open();
}

TEST_F(InspectTest, TooManyObserversAreRefusedUntilOneGoes) {
  RpcBackendOptions options;
  options.max_observers = 2;
  testing::Group group(1, with_store(store_, options));
  std::vector<std::unique_ptr<Observer>> watching;
  for (int i = 0; i < 2; ++i) {
    watching.push_back(observer());
    EXPECT_TRUE(watching.back()->ask(workers(), kTimeout)[0].ok());
  }
  const absl::Status refused = observer()->ask(workers(), kTimeout)[0].status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_observers"));
  watching.pop_back();
  EXPECT_TRUE(eventually([&] { return group[0]->tables().observers == 1; }));
  EXPECT_TRUE(observer()->ask(workers(), kTimeout)[0].ok());
}

TEST_F(InspectTest, WorkersWithoutObserversRefuseThem) {
  RpcBackendOptions options;
  options.max_observers = 0;
  testing::Group group(1, with_store(store_, options));
  const absl::Status refused = observer()->ask(workers(), kTimeout)[0].status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
}

TEST_F(InspectTest, ObserverNeedsTheTokenOfTheJob) {
  RpcBackendOptions options;
  options.security.token = kToken;
  testing::Group group(1, with_store(store_, options));
  SecurityOptions right, wrong;
  right.token = kToken;
  wrong.token = "a token of somebody else, of the same length";
  EXPECT_TRUE(observer({.security = right})->ask(workers(), kTimeout)[0].ok());
  for (const SecurityOptions& security : {wrong, SecurityOptions()}) {
    const absl::Status refused = observer({.security = security})->ask(workers(), kTimeout)[0].status();
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.message()), HasSubstr("token"));
  }
  EXPECT_EQ(group[0]->tables().observers, 0u);
}

TEST_F(InspectTest, WithCertificatesItHasTheNameInItsOwnOne) {
  const security::TestAuthority authority;
  const auto certificate = [](const security::CertificateFiles& files) {
    SecurityOptions security;
    security.certificate_file = files.certificate;
    security.key_file = files.key;
    security.authority_file = files.authority;
    return security;
  };
  RpcBackendOptions options;
  options.security = certificate(authority.worker("job", "worker0"));
  testing::Group group(1, with_store(store_, options));
  const SecurityOptions clerk = certificate(authority.worker("job", "clerk"));
  EXPECT_TRUE(observer({.name = "clerk", .security = clerk})->ask(workers(), kTimeout)[0].ok());
  const absl::Status impostor = observer({.security = clerk})->ask(workers(), kTimeout)[0].status();
  EXPECT_TRUE(absl::IsPermissionDenied(impostor)) << impostor;
  const SecurityOptions other_job = certificate(authority.worker("other", "clerk"));
  EXPECT_FALSE(observer({.name = "clerk", .security = other_job})->ask(workers(), kTimeout)[0].ok());
  EXPECT_FALSE(observer()->ask(workers(), kTimeout)[0].ok());
}

TEST_F(InspectTest, APolicyMayDenyIt) {
  testing::PolicyText policy("allow ops service inspect\ndefault deny\n");
  RpcBackendOptions options;
  options.security.policy_file = policy.path();
  testing::Group group(1, with_store(store_, options));
  EXPECT_TRUE(observer({.name = "ops"})->ask(workers(), kTimeout)[0].ok());
  const absl::Status denied = observer()->ask(workers(), kTimeout)[0].status();
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(std::string(denied.message()), HasSubstr("may not use the service \"inspect\""));
  // The name of the worker itself opens nothing.
  EXPECT_TRUE(absl::IsPermissionDenied(observer({.name = "worker0"})->ask(workers(), kTimeout)[0].status()));
}

TEST_F(InspectTest, OtherIncarnationsAndMissingWorkersAreErrors) {
  testing::Group group(1, with_store(store_));
  std::vector<proto::WorkerRecord> records = workers();
  records.push_back(records[0]);
  records[1].set_incarnation(12);
  records.push_back(records[0]);
  records[2].set_incarnation(13);
  records[2].clear_addresses();
  records.push_back(records[0]);
  records[3].set_incarnation(14);
  for (proto::Address& address : *records[3].mutable_addresses()) {
    if (address.transport() == "tcp") address.set_address("127.0.0.1:1");
  }
  const std::unique_ptr<Observer> watching = observer();
  const std::vector<Observer::Answer> answers = watching->ask(records, kTimeout);
  EXPECT_TRUE(answers[0].ok()) << answers[0].status();
  EXPECT_TRUE(absl::IsAborted(answers[1].status())) << answers[1].status();
  EXPECT_TRUE(absl::IsUnavailable(answers[2].status())) << answers[2].status();
  EXPECT_TRUE(absl::IsUnavailable(answers[3].status())) << answers[3].status();
}

// A process with credentials that does not follow the protocol.
class HostileObserver {
 public:
  HostileObserver(const proto::WorkerRecord& worker, bool introduces_itself) : worker_(worker) {
    for (const proto::Address& address : worker.addresses()) {
      if (address.transport() != "tcp") continue;
      auto connection = transport_->connect(address.address(), listener_, kTimeout);
      EXPECT_TRUE(connection.ok()) << connection.status();
      connection_ = *std::move(connection);
    }
    if (introduces_itself) send(hello());
  }
  ~HostileObserver() { transport_->shutdown(); }

  proto::Envelope hello() const {
    proto::Envelope envelope;
    envelope.mutable_hello()->set_protocol_version(kProtocolVersion);
    envelope.mutable_hello()->set_name("inspect");
    envelope.mutable_hello()->set_to_incarnation(worker_.incarnation());
    envelope.mutable_hello()->set_observer(true);
    return envelope;
  }
  static proto::Envelope question(uint64_t number, const std::string& body = "") {
    proto::Envelope envelope;
    envelope.mutable_request()->set_call_id(number);
    envelope.mutable_request()->mutable_service()->set_number(kInspect);
    envelope.mutable_request()->mutable_service()->set_body(body);
    return envelope;
  }
  void send(const proto::Envelope& envelope) { (void)connection_->send({envelope.SerializeAsString(), {}}); }
  void send_bytes(std::size_t size) { (void)connection_->send({std::string(size, 'x'), {}}); }
  proto::Envelope receive(std::size_t number) {
    proto::Envelope envelope;
    const auto messages = listener_->wait_for_messages(number + 1);
    EXPECT_GT(messages.size(), number);
    if (messages.size() > number) EXPECT_TRUE(envelope.ParseFromString(messages[number].header));
    return envelope;
  }
  void expect_end() { EXPECT_FALSE(listener_->wait_closed().ok()); }

 private:
  const proto::WorkerRecord worker_;
  const std::shared_ptr<transport::RecordingListener> listener_ =
      std::make_shared<transport::RecordingListener>();
  const std::unique_ptr<transport::Transport> transport_ =
      transport::make_tcp_transport({.credentials = security::insecure_credentials(), .purpose = "rpc"});
  std::shared_ptr<transport::Connection> connection_;
};

TEST_F(InspectTest, HostileObserversLoseTheirConnectionAndDisturbNobody) {
  testing::Group group(2, with_store(store_));
  const proto::WorkerRecord worker = workers()[0];
  {
    HostileObserver asks_first(worker, false);
    asks_first.send(HostileObserver::question(1));
    asks_first.expect_end();
  }
  {
    HostileObserver calls(worker, true);
    EXPECT_TRUE(calls.receive(0).has_hello());
    proto::Envelope call;
    call.mutable_request()->set_call_id(1);
    call.mutable_request()->set_function("wait_at_gate");
    calls.send(call);
    calls.expect_end();
  }
  {
    HostileObserver greets_twice(worker, true);
    greets_twice.send(greets_twice.hello());
    greets_twice.expect_end();
  }
  {
    HostileObserver sends_much(worker, true);
    EXPECT_TRUE(sends_much.receive(0).has_hello());
    sends_much.send_bytes(std::size_t{1} << 20);
    sends_much.expect_end();
  }
  {
    HostileObserver garbage(worker, true);
    EXPECT_TRUE(garbage.receive(0).has_hello());
    garbage.send(HostileObserver::question(1, "\xff\xff"));
    EXPECT_EQ(garbage.receive(1).response().status().code(),
              static_cast<int>(absl::StatusCode::kInvalidArgument));
  }
  {
    // More questions than the bound. All but some are refused, without the work of an answer.
    HostileObserver hurries(worker, true);
    for (uint64_t i = 1; i <= 100; ++i) hurries.send(HostileObserver::question(i));
    int refused = 0;
    for (std::size_t i = 1; i <= 100; ++i) {
      if (hurries.receive(i).response().status().code() ==
          static_cast<int>(absl::StatusCode::kResourceExhausted)) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 0);
  }
  EXPECT_TRUE(eventually([&] { return group[0]->tables().observers == 0; }));
  EXPECT_EQ(group[0]->get_worker_infos().size(), 2u);
  EXPECT_TRUE(observer()->ask(workers(), kTimeout)[0].ok());
}

// A program that answers like a worker, but what it wants.
class HostileWorker {
 public:
  // Called with each message; returns what to answer. An empty text ends the connection.
  using Answers = std::function<std::string(const proto::Envelope&)>;

  explicit HostileWorker(Answers answers) {
    auto address = transport_->listen([answers](const std::shared_ptr<transport::Connection>&) {
      return std::make_shared<transport::RecordingListener>(
          [answers](transport::Connection& connection, const transport::Message& message) {
            proto::Envelope envelope;
            EXPECT_TRUE(envelope.ParseFromString(message.header));
            const std::string answer = answers(envelope);
            if (answer.empty()) return connection.close(absl::UnavailableError("rude"));
            (void)connection.send({answer, {}});
          });
    });
    EXPECT_TRUE(address.ok()) << address.status();
    record_.set_name("worker");
    record_.set_incarnation(kIncarnation);
    record_.add_addresses()->set_transport("tcp");
    record_.mutable_addresses(0)->set_address(*address);
  }
  ~HostileWorker() { transport_->shutdown(); }

  const proto::WorkerRecord& record() const { return record_; }
  static constexpr uint64_t kIncarnation = 7;
  static std::string hello(uint64_t incarnation = kIncarnation) {
    proto::Envelope envelope;
    envelope.mutable_hello()->set_incarnation(incarnation);
    return envelope.SerializeAsString();
  }
  static std::string answer(const proto::Envelope& question, const proto::AgentState& state) {
    proto::Envelope envelope;
    envelope.mutable_response()->set_call_id(question.request().call_id());
    envelope.mutable_response()->set_body(state.SerializeAsString());
    return envelope.SerializeAsString();
  }

 private:
  proto::WorkerRecord record_;
  const std::unique_ptr<transport::Transport> transport_ = transport::make_tcp_transport({.purpose = "rpc"});
};

TEST(HostileWorkers, CannotMakeAnObserverKeepMoreThanTheBounds) {
  proto::AgentState good, many, other, unnamed;
  good.set_name("worker");
  good.set_incarnation(HostileWorker::kIncarnation);
  many = other = unnamed = good;
  for (int i = 0; i < 2000; ++i) many.add_pending();
  other.set_incarnation(8);
  unnamed.set_name("\x1b[2J");
  struct Case {
    const char* what;
    std::function<std::string(const proto::Envelope&)> answers;
    absl::StatusCode expected;
  };
  const auto answering = [](const proto::AgentState& state) {
    return [state](const proto::Envelope& message) {
      return message.has_hello() ? HostileWorker::hello() : HostileWorker::answer(message, state);
    };
  };
  proto::Envelope request;
  request.mutable_request()->set_function("f");
  const std::vector<Case> cases = {
      {"a good answer", answering(good), absl::StatusCode::kOk},
      {"a long list", answering(many), absl::StatusCode::kInvalidArgument},
      {"another worker", answering(other), absl::StatusCode::kInvalidArgument},
      {"no name", answering(unnamed), absl::StatusCode::kInvalidArgument},
      {"a Hello of another one", [](const auto&) { return HostileWorker::hello(8); },
       absl::StatusCode::kInvalidArgument},
      {"a second Hello", [](const auto&) { return HostileWorker::hello(); },
       absl::StatusCode::kInvalidArgument},
      {"a request", [&](const auto&) { return request.SerializeAsString(); },
       absl::StatusCode::kInvalidArgument},
      {"garbage", [](const auto&) { return std::string(100, '\xff'); }, absl::StatusCode::kInvalidArgument},
      {"too many bytes", [](const auto&) { return std::string(8 << 20, 'x'); },
       absl::StatusCode::kInvalidArgument},
      {"the end", [](const auto&) { return std::string(); }, absl::StatusCode::kUnavailable},
  };
  for (const Case& each : cases) {
    HostileWorker worker(each.answers);
    auto watching = Observer::open({});
    ASSERT_TRUE(watching.ok()) << watching.status();
    const auto answers = (*watching)->ask({worker.record()}, kTimeout);
    EXPECT_EQ(answers[0].status().code(), each.expected) << each.what << ": " << answers[0].status();
  }
}

TEST(HostileWorkers, OneThatNeverAnswersCostsTheTimeoutAlone) {
  HostileWorker silent([](const proto::Envelope& message) {
    // After the Hello it answers questions that nobody has asked.
    proto::Envelope stale;
    stale.mutable_response()->set_call_id(0);
    return message.has_hello() ? HostileWorker::hello() : stale.SerializeAsString();
  });
  auto watching = Observer::open({});
  ASSERT_TRUE(watching.ok()) << watching.status();
  const auto answers = (*watching)->ask({silent.record()}, absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answers[0].status())) << answers[0].status();
}

}  // namespace
}  // namespace gradwire::rpc
