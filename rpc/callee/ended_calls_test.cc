#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

// Whatever ends a call takes it out of everything that holds it: its request must not stay at the callee
// until the event comes for which the call has waited.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kCalls = 20;

// The event for which the calls of a test wait.
Promise<void>& gate() {
  static auto* promise = new Promise<void>;
  return *promise;
}

// Deadlines that no test reaches: only what the test does ends its calls.
RpcBackendOptions with_long_timeout(RpcBackendOptions options = {}) {
  options.rpc_timeout = absl::Minutes(10);
  return options;
}

// Whether the agent comes to serve `calls` calls, and holds no request but theirs.
bool comes_to_hold(const Agent& agent, std::size_t calls) {
  return eventually([&] {
    const AgentTables tables = agent.tables();
    return tables.served_calls == calls && tables.held_requests == calls;
  });
}

RpcBackendOptions with_faults(std::function<transport::Fault::Kind(const proto::Envelope&)> decide) {
  RpcBackendOptions options;
  options.hooks = testing::outgoing_faults(std::move(decide));
  return options;
}
// The callee must notice by itself that the time of a call is over.
RpcBackendOptions without_cancels() {
  return with_faults([](const proto::Envelope& envelope) {
    return envelope.has_cancel() ? transport::Fault::Kind::kDrop : transport::Fault::Kind::kDeliver;
  });
}

template <class R>
void cancel_all(std::vector<Future<R>>& calls) {
  for (Future<R>& call : calls) call.cancel();
  for (Future<R>& call : calls)
    EXPECT_EQ(call.result().status().code(), absl::StatusCode::kCancelled) << call.result().status();
}

struct Slow {
  explicit Slow(bool waits) {
    if (waits) gate().future().wait();
  }
  int64_t size(const std::string& bytes) const { return static_cast<int64_t>(bytes.size()); }
};
GRADWIRE_RPC_CLASS(Slow, bool)
GRADWIRE_RPC_METHOD(Slow, size)

TEST(EndedCall, CancelledWhileItWaitedForItsObjectIsHeldNowhere) {
  testing::Group group(2, with_long_timeout());
  gate() = Promise<void>();
  RRef<Slow> object = group[0]->remote<Slow>("worker1", true);
  std::vector<Future<int64_t>> calls;
  for (std::size_t i = 0; i < kCalls; ++i)
    calls.push_back(object.rpc_async<&Slow::size>(std::string(1000, 'x')));
  EXPECT_TRUE(eventually([&] { return group[1]->tables().waits_for_values == kCalls; }));
  EXPECT_EQ(object.handle()->early_calls()->size(), kCalls);
  cancel_all(calls);
  // Only the constructor is left, at both ends.
  EXPECT_TRUE(comes_to_hold(*group[1], 1));
  EXPECT_EQ(group[1]->tables().waits_for_values, 0u);
  EXPECT_EQ(object.handle()->early_calls()->size(), 0u);
  gate().set_value();
  EXPECT_EQ(object.rpc_sync<&Slow::size>("abc"), 3);
  object = RRef<Slow>();
  group.expect_empty();
}

TEST(EndedCall, OfAnUnknownReferenceIsHeldNowhere) {
  testing::Group group(2, with_long_timeout(with_faults([](const proto::Envelope& envelope) {
                         return envelope.request().has_constructor() ? transport::Fault::Kind::kDrop
                                                                     : transport::Fault::Kind::kDeliver;
                       })));
  {
    const RRef<Slow> never = group[0]->remote<Slow>("worker1", false);
    std::vector<Future<int64_t>> calls(1, never.rpc_async<&Slow::size>("abc"));
    EXPECT_TRUE(eventually([&] { return group[1]->tables().waits_for_values == 1; }));
    const absl::Time cancelled = absl::Now();
    cancel_all(calls);
    EXPECT_TRUE(comes_to_hold(*group[1], 0));
    EXPECT_EQ(group[1]->tables().values, 0u);
    // The wait would end by itself after ten seconds.
    EXPECT_LT(absl::Now() - cancelled, absl::Seconds(9));
  }
  // A graceful shutdown would wait for the creation.
  group.kill(0);
}

TEST(EndedCall, ThatExpiresWhileItWaitsForItsObjectSaysSo) {
  testing::Group group(2);
  gate() = Promise<void>();
  RRef<Slow> object = group[0]->remote<Slow>("worker1", true);
  // The callee's answer comes 100 ms before the caller's own timer. If the machine pauses in that time, the
  // timer may be first: then try again.
  constexpr absl::Duration kTimeout = absl::Seconds(2);
  absl::Status status;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const absl::Time begin = absl::Now();
    status = object.with_timeout(kTimeout).rpc_async<&Slow::size>("abc").result().status();
    if (absl::Now() - begin < kTimeout) break;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("was not made in time"));
  gate().set_value();
  object = RRef<Slow>();
  group.expect_empty();
}

int64_t number_behind_the_gate() {
  gate().future().wait();
  return 1;
}
GRADWIRE_RPC(number_behind_the_gate)

TEST(EndedCall, CancelledFetchOfAnOwnValueIsHeldNowhere) {
  testing::Group group(1, with_long_timeout());
  gate() = Promise<void>();
  RRef<int64_t> number = group[0]->remote<&number_behind_the_gate>("worker0");
  Future<int64_t> fetched = number.to_here_async();
  EXPECT_EQ(group[0]->tables().waits_for_values, 1u);
  fetched.cancel();
  EXPECT_EQ(fetched.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(group[0]->tables().waits_for_values, 0u);
  gate().set_value();
  EXPECT_EQ(number.to_here(), 1);
  number = RRef<int64_t>();
  group.expect_empty();
}

struct Serial {
  Future<void> hold() { return gate().future(); }
  int64_t count() { return ++counted; }
  int64_t counted = 0;
};
GRADWIRE_RPC_SERIAL_CLASS(Serial)
GRADWIRE_RPC_METHOD(Serial, hold)
GRADWIRE_RPC_METHOD(Serial, count)

TEST(EndedCall, CancelledWhileItWaitedForItsTurnIsHeldNowhere) {
  testing::Group group(2, with_long_timeout());
  gate() = Promise<void>();
  RRef<Serial> object = group[0]->remote<Serial>("worker1");
  Future<void> held = object.rpc_async<&Serial::hold>();
  std::vector<Future<int64_t>> calls;
  for (std::size_t i = 0; i < kCalls; ++i) calls.push_back(object.rpc_async<&Serial::count>());
  EXPECT_TRUE(comes_to_hold(*group[1], kCalls + 1));
  cancel_all(calls);
  EXPECT_TRUE(comes_to_hold(*group[1], 1));
  gate().set_value();
  held.wait();
  EXPECT_EQ(object.rpc_sync<&Serial::count>(), 1);
  object = RRef<Serial>();
  group.expect_empty();
}

TEST(EndedCall, ExpiredWhileItWaitedForItsTurnIsHeldNowhere) {
  testing::Group group(2, with_long_timeout(without_cancels()));
  gate() = Promise<void>();
  RRef<Serial> object = group[0]->remote<Serial>("worker1");
  Future<void> held = object.rpc_async<&Serial::hold>();
  std::vector<Future<int64_t>> calls;
  RRef<Serial> hurried = object.with_timeout(absl::Milliseconds(500));
  for (std::size_t i = 0; i < kCalls; ++i) calls.push_back(hurried.rpc_async<&Serial::count>());
  for (Future<int64_t>& call : calls)
    EXPECT_EQ(call.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(comes_to_hold(*group[1], 1));
  gate().set_value();
  held.wait();
  EXPECT_EQ(object.rpc_sync<&Serial::count>(), 1);
  object = hurried = RRef<Serial>();
  group.expect_empty();
}

// Ordered calls that wait without saying so. The next one starts 200 ms after the one before it.
constexpr std::size_t kOrdered = 100;
std::shared_ptr<absl::Notification>& released() {
  static auto* notification = new std::shared_ptr<absl::Notification>;
  return *notification;
}
std::atomic<int> ran{0};
void occupy() {
  const std::shared_ptr<absl::Notification> until = released();
  until->WaitForNotification();
}
GRADWIRE_RPC(occupy)
int64_t run_behind() { return ++ran; }
GRADWIRE_RPC(run_behind)

class OrderedCall : public ::testing::Test {
 protected:
  void SetUp() override {
    ran = 0;
    released() = std::make_shared<absl::Notification>();
  }
  void occupy_order() {
    for (std::size_t i = 0; i < kOrdered; ++i) occupied_.push_back(group()[0]->rpc_async<&occupy>(to_));
  }
  void release_order() {
    released()->Notify();
    for (Future<void>& call : occupied_) call.wait();
    // No call was left behind them.
    group()[0]->rpc_sync<&run_behind>(to_);
    EXPECT_EQ(ran, 1);
    group().expect_empty();
  }
  testing::Group& group() { return *group_; }

  const Destination to_ = Destination("worker1").ordered();
  std::optional<testing::Group> group_;
  std::vector<Future<void>> occupied_;
};

TEST_F(OrderedCall, CancelledBehindOthersIsHeldNowhere) {
  group_.emplace(2, with_long_timeout());
  occupy_order();
  std::vector<Future<int64_t>> calls;
  for (std::size_t i = 0; i < kCalls; ++i) calls.push_back(group()[0]->rpc_async<&run_behind>(to_));
  EXPECT_TRUE(comes_to_hold(*group()[1], kOrdered + kCalls));
  cancel_all(calls);
  EXPECT_TRUE(comes_to_hold(*group()[1], kOrdered));
  release_order();
}

TEST_F(OrderedCall, ExpiredBehindOthersIsHeldNowhere) {
  group_.emplace(2, with_long_timeout(without_cancels()));
  occupy_order();
  Future<int64_t> call =
      group()[0]->rpc_async<&run_behind>(Destination(to_).with_timeout(absl::Milliseconds(500)));
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(comes_to_hold(*group()[1], kOrdered));
  release_order();
}

// A GraphHook that admits nothing while it is closed.
class Barrier : public AgentExtension, public GraphHook {
 public:
  static std::atomic<bool>& closed() {
    static std::atomic<bool> closed{false};
    return closed;
  }
  // The next call that is given up stays in `kept`, as on a thread that is slow to drop it.
  static inline std::atomic<bool> keeps{false};
  static inline std::atomic<bool> has_kept{false};
  static inline absl::AnyInvocable<void(absl::Status)> kept;

  absl::string_view name() const override { return "autograd"; }
  bool serves(uint32_t /*service*/) const override { return false; }
  void serve(ServiceCall /*call*/) override {}
  GraphHook* graph_hook() override { return this; }

  absl::Status outgoing_request(const Worker& /*to*/, TensorSet* /*tensors*/,
                                proto::Payload& payload) override {
    if (closed()) payload.mutable_graph();
    return absl::OkStatus();
  }
  absl::Status outgoing_answer(const Worker& /*to*/, TensorSet* /*tensors*/,
                               proto::Payload& /*payload*/) override {
    return absl::OkStatus();
  }
  void outgoing_failed(const Worker& /*to*/, const proto::Graph& /*graph*/) override {}
  uint64_t admit(const Worker& /*from*/, const proto::Graph& /*graph*/, absl::Time /*deadline*/,
                 absl::AnyInvocable<void(absl::Status)> proceed) override {
    MutexLock lock(mutex_);
    waiting_.emplace(++last_, std::move(proceed));
    return last_;
  }
  void give_up(uint64_t wait, const absl::Status& reason) override {
    absl::AnyInvocable<void(absl::Status)> proceed;
    {
      MutexLock lock(mutex_);
      proceed = std::move(waiting_[wait]);
      waiting_.erase(wait);
    }
    proceed(reason);
    if (!keeps.exchange(false)) return;
    kept = std::move(proceed);
    has_kept = true;
  }
  absl::Status incoming_request(const Worker& /*from*/, TensorSet* /*tensors*/,
                                const proto::Payload& /*payload*/) override {
    return absl::OkStatus();
  }
  absl::Status incoming_answer(const Worker& /*from*/, TensorSet* /*tensors*/,
                               const proto::Payload& /*payload*/) override {
    return absl::OkStatus();
  }

 private:
  Mutex mutex_;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, absl::AnyInvocable<void(absl::Status)>> waiting_ ABSL_GUARDED_BY(mutex_);
};
[[maybe_unused]] const bool registered = [] {
  register_extension(
      [](AgentServices&) -> std::unique_ptr<AgentExtension> { return std::make_unique<Barrier>(); });
  return true;
}();

TEST(EndedCall, CancelledWhileItWaitedForItsContextIsHeldNowhere) {
  testing::Group group(2, with_long_timeout());
  std::vector<Future<int64_t>> calls;
  Barrier::closed() = true;
  for (std::size_t i = 0; i < kCalls; ++i) calls.push_back(group[0]->rpc_async<&run_behind>("worker1"));
  EXPECT_TRUE(comes_to_hold(*group[1], kCalls));
  Barrier::closed() = false;
  cancel_all(calls);
  EXPECT_TRUE(comes_to_hold(*group[1], 0));
  group.expect_empty();
}

struct Precious {
  explicit Precious(int64_t value) : number_(value) { ++living; }
  ~Precious() {
    if (on_duty()) ++destroyed_on_duty;
    --living;
  }
  int64_t number() const { return number_; }
  static inline std::atomic<int> living{0};
  static inline std::atomic<int> destroyed_on_duty{0};

 private:
  int64_t number_;
};
GRADWIRE_RPC_CLASS(Precious, int64_t)
GRADWIRE_RPC_METHOD(Precious, number)

// The threads that end a call are often on duty, and may be the last that know its object.
TEST(EndedCall, ItsObjectIsDestroyedOnTheExecutor) {
  testing::Group group(2, with_long_timeout());
  RRef<Precious> object = group[0]->remote<Precious>("worker1", int64_t{7});
  EXPECT_EQ(object.rpc_sync<&Precious::number>(), 7);
  Barrier::closed() = true;
  Barrier::keeps = true;
  std::vector<Future<int64_t>> calls(1, object.rpc_async<&Precious::number>());
  EXPECT_TRUE(comes_to_hold(*group[1], 1));
  Barrier::closed() = false;
  cancel_all(calls);
  object = RRef<Precious>();
  EXPECT_TRUE(eventually([&] { return Barrier::has_kept && group[1]->tables().values == 0; }));
  // The message that gave the reference back has been handled, and the task that drops the value has ended.
  group[0]->rpc_sync<&run_behind>("worker1");
  EXPECT_TRUE(eventually([&] { return group[1]->services().executor()->pending() == 0; }));
  EXPECT_EQ(Precious::living, 1);
  {
    const DutyScope duty;
    Barrier::kept = nullptr;
  }
  EXPECT_TRUE(eventually([] { return Precious::living == 0; }));
  EXPECT_EQ(Precious::destroyed_on_duty, 0);
  group.expect_empty();
}

struct Broken {
  explicit Broken(bool waits) {
    if (waits) gate().future().wait();
    throw std::runtime_error("cannot be made");
  }
  Broken next() const { return *this; }
  int64_t number() const { return 1; }
};

}  // namespace

template <>
struct Codec<Broken> {
  static std::string type_name() { return "Broken"; }
  static absl::Status encode(const Broken&, Encoder&, proto::Value&) { return absl::OkStatus(); }
  static absl::StatusOr<Broken> decode(const proto::Value&, Decoder&) {
    return absl::UnimplementedError("it is never sent");
  }
};

namespace {

GRADWIRE_RPC_CLASS(Broken, bool)
GRADWIRE_RPC_METHOD(Broken, next)
GRADWIRE_RPC_METHOD(Broken, number)

TEST(EndedCall, OnAValueWhoseCreationHasFailedIsNotSent) {
  std::atomic<int> methods{0};
  testing::Group group(2, with_faults([&methods](const proto::Envelope& envelope) {
                         if (envelope.request().has_method()) ++methods;
                         return transport::Fault::Kind::kDeliver;
                       }));
  {
    const RRef<Broken> broken = group[0]->remote<Broken>("worker1", false);
    EXPECT_FALSE(broken.confirmed().result().ok());
    const absl::Status status = broken.rpc_async<&Broken::number>().result().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be made"));
    const RRef<Broken> next = broken.remote<&Broken::next>();
    EXPECT_THAT(std::string(next.confirmed().result().message()), HasSubstr("cannot be made"));
    EXPECT_EQ(methods, 0);
    // The entry of the failed creation, to which `broken` still refers.
    EXPECT_EQ(group[1]->tables().values, 1u);
  }
  group.expect_empty();
}

// The caller chooses how long such a chain is. It must not choose the depth of a stack at either end.
TEST(EndedCall, LongChainOfCallsEndsWithTheFirstError) {
  testing::Group group(2, with_long_timeout());
  gate() = Promise<void>();
  {
    constexpr int kLength = 2'000;
    std::vector<RRef<Broken>> chain(1, group[0]->remote<Broken>("worker1", true));
    for (int i = 1; i < kLength; ++i) chain.push_back(chain.back().remote<&Broken::next>());
    EXPECT_TRUE(eventually([&] { return group[1]->tables().waits_for_values == kLength - 1; }));
    gate().set_value();
    for (const RRef<Broken>& broken : chain) {
      const absl::Status status = broken.confirmed().result();
      ASSERT_THAT(std::string(status.message()), HasSubstr("cannot be made"));
    }
  }
  // The references of the chain take long to end under a sanitizer.
  EXPECT_TRUE(eventually([&] { return group[0]->tables().pending_calls == 0; }));
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
