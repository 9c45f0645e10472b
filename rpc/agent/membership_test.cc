#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"

// Groups whose workers join, leave, die and are restarted.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kChangeTimeout = absl::Seconds(30);

int64_t twice(int64_t value) { return 2 * value; }
GRADWIRE_RPC(twice)

struct Box {
  explicit Box(int64_t start) : value(start) {}
  int64_t get() const { return value; }
  int64_t value;
};
GRADWIRE_RPC_CLASS(Box, int64_t)
GRADWIRE_RPC_METHOD(Box, get)

int64_t get_from(const RRef<Box>& box) { return box.rpc_sync<&Box::get>(); }
GRADWIRE_RPC(get_from)

// Records the changes that one agent reports.
class Changes {
 public:
  explicit Changes(const std::shared_ptr<Agent>& agent)
      : subscription_(agent->on_worker_change([seen = seen_](const WorkerInfo& worker, WorkerState state) {
          MutexLock lock(seen->mutex);
          seen->list.emplace_back(worker.name, state);
          seen->changed.notify_all();
        })) {}

  // Waits for the change. Returns whether it was reported.
  bool saw(const std::string& name, WorkerState state) {
    const absl::Time deadline = absl::Now() + kChangeTimeout;
    MutexLock lock(seen_->mutex);
    while (true) {
      for (const auto& change : seen_->list) {
        if (change == std::make_pair(name, state)) return true;
      }
      if (absl::Now() > deadline) return false;
      seen_->changed.wait_for(seen_->mutex, deadline - absl::Now());
    }
  }

 private:
  struct Seen {
    Mutex mutex;
    CondVar changed;
    std::vector<std::pair<std::string, WorkerState>> list ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  std::shared_ptr<void> subscription_;
};

RpcBackendOptions open_options() {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  return options;
}

std::vector<std::string> names(const std::shared_ptr<Agent>& agent) {
  std::vector<std::string> names;
  for (const WorkerInfo& info : agent->get_worker_infos()) names.push_back(info.name);
  return names;
}

TEST(OpenGroup, AnyWorkerMayLeaveAlsoTheFirst) {
  const RpcBackendOptions options = open_options();
  auto first = Agent::start("first", -1, 0, options);
  Changes seen(first);
  auto second = Agent::start("second", -1, 0, options);
  EXPECT_EQ(first->wait_for_worker("second", kChangeTimeout), (WorkerInfo{"second", 1}));
  EXPECT_TRUE(seen.saw("second", WorkerState::kAlive));
  EXPECT_EQ(first->rpc_sync<&twice>("second", 21), 42);
  EXPECT_EQ(second->rpc_sync<&twice>("first", 4), 8);
  Changes seen_by_second(second);
  first->shutdown(/*graceful=*/true, kChangeTimeout);
  EXPECT_TRUE(seen_by_second.saw("first", WorkerState::kLeft));
  EXPECT_EQ(second->worker_state("first"), WorkerState::kLeft);
  const absl::Status gone = status_of([&] { second->rpc_sync<&twice>("first", 1); });
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), HasSubstr("worker \"first\" has left"));
  auto third = Agent::start("third", -1, 0, options);
  EXPECT_EQ(third->get_worker_info().id, 2);
  EXPECT_EQ(third->rpc_sync<&twice>("second", 3), 6);
  EXPECT_THAT(names(third), UnorderedElementsAre("second", "third"));
  third->shutdown(true, kChangeTimeout);
  second->shutdown(true, kChangeTimeout);
}

TEST(OpenGroup, WorkerThatHasNotJoinedYetCanBeWaitedFor) {
  const RpcBackendOptions options = open_options();
  auto early = Agent::start("early", -1, 0, options);
  const absl::Status unknown = status_of([&] { early->rpc_sync<&twice>("late", 1); });
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  const absl::Status timed_out = status_of([&] { early->wait_for_worker("late", absl::Milliseconds(20)); });
  EXPECT_EQ(timed_out.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(timed_out.message(), HasSubstr("\"late\" did not join"));
  std::shared_ptr<Agent> late;
  std::thread other([&] { late = Agent::start("late", -1, 0, options); });
  EXPECT_EQ(early->wait_for_worker("late", kChangeTimeout).name, "late");
  EXPECT_EQ(early->rpc_sync<&twice>("late", 5), 10);
  other.join();
  Changes seen(early);
  late->shutdown(true, kChangeTimeout);
  EXPECT_TRUE(seen.saw("late", WorkerState::kLeft));
  const absl::Status cancelled = status_of([&] {
    std::thread stopper([&] { early->shutdown(/*graceful=*/false); });
    // The shutdown may come before or after the wait begins: in both cases the wait ends.
    struct Join {
      std::thread& thread;
      ~Join() { thread.join(); }
    } join{stopper};
    early->wait_for_worker("late");
  });
  EXPECT_FALSE(cancelled.ok());
}

TEST(OpenGroup, NameOfALiveWorkerIsRefused) {
  const RpcBackendOptions options = open_options();
  auto first = Agent::start("same", -1, 0, options);
  const absl::Status refused = status_of([&] { Agent::start("same", -1, 0, options); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("\"same\" is taken"));
  EXPECT_EQ(first->rpc_sync<&twice>("same", 1), 2);
  first->shutdown(true, kChangeTimeout);
}

TEST(OpenGroup, ReferencesOfAWorkerThatLeavesAreReleased) {
  const RpcBackendOptions options = open_options();
  auto owner = Agent::start("owner", -1, 0, options);
  auto holder = Agent::start("holder", -1, 0, options);
  auto other = Agent::start("other", -1, 0, options);
  owner->wait_for_worker("other", kChangeTimeout);
  RRef<Box> kept = holder->remote<Box>("owner", int64_t{7});
  holder->wait_for_worker("other", kChangeTimeout);
  EXPECT_EQ(holder->rpc_sync<&get_from>("other", kept), 7);
  EXPECT_EQ(owner->tables().owned_rrefs, 1u);
  holder->shutdown(true, kChangeTimeout);
  EXPECT_TRUE(eventually([&] { return owner->tables().owned_rrefs == 0; }, kChangeTimeout));
  owner->shutdown(true, kChangeTimeout);
  other->shutdown(true, kChangeTimeout);
}

TEST(Restart, NewIncarnationTakesThePlaceAndOldReferencesAreAborted) {
  const RpcBackendOptions options = open_options();
  auto client = Agent::start("client", -1, 0, options);
  auto server = Agent::start("server", -1, 0, options);
  client->wait_for_worker("server", kChangeTimeout);
  RRef<Box> old = client->remote<Box>("server", int64_t{1});
  EXPECT_EQ(old.rpc_sync<&Box::get>(), 1);
  Changes seen(client);
  server->shutdown(/*graceful=*/false);
  auto restarted = Agent::start("server", -1, 0, options);
  EXPECT_TRUE(seen.saw("server", WorkerState::kLeft));
  EXPECT_EQ(client->wait_for_worker("server", kChangeTimeout).id, restarted->get_worker_info().id);
  // Calls by name go to the new incarnation.
  EXPECT_EQ(client->rpc_sync<&twice>("server", 8), 16);
  const absl::Status aborted = status_of([&] { old.rpc_sync<&Box::get>(); });
  EXPECT_EQ(aborted.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(aborted.message(), HasSubstr("\"server\" was restarted as a new incarnation"));
  restarted->shutdown(true, kChangeTimeout);
  client->shutdown(true, kChangeTimeout);
}

TEST(Restart, FixedGroupTakesAWorkerBack) {
  RpcBackendOptions options = open_options();
  std::shared_ptr<Agent> one, two;
  std::thread other([&] { two = Agent::start("two", 1, 2, options); });
  one = Agent::start("one", 0, 2, options);
  other.join();
  EXPECT_EQ(one->rpc_sync<&twice>("two", 1), 2);
  Changes seen(one);
  two->shutdown(/*graceful=*/false);
  EXPECT_TRUE(seen.saw("two", WorkerState::kLeft));
  two = Agent::start("two", 1, 2, options);
  EXPECT_EQ(one->wait_for_worker("two", kChangeTimeout).id, 1);
  EXPECT_EQ(one->rpc_sync<&twice>("two", 2), 4);
  EXPECT_EQ(two->rpc_sync<&twice>("one", 3), 6);
  std::thread graceful([&] { two->shutdown(true, kChangeTimeout); });
  one->shutdown(true, kChangeTimeout);
  graceful.join();
}

TEST(Changes, SubscriptionEndsWithItsHandle) {
  const RpcBackendOptions options = open_options();
  auto agent = Agent::start("agent", -1, 0, options);
  std::atomic<int> calls{0};
  agent->on_worker_change([&calls](const WorkerInfo&, WorkerState) { ++calls; }).reset();
  Changes seen(agent);
  auto other = Agent::start("other", -1, 0, options);
  EXPECT_TRUE(seen.saw("other", WorkerState::kAlive));
  EXPECT_EQ(calls, 0);
  other->shutdown(true, kChangeTimeout);
  agent->shutdown(true, kChangeTimeout);
}

TEST(Options, HeartbeatsThatCannotWorkAreRefused) {
  RpcBackendOptions options = open_options();
  options.heartbeat.suspect_after = options.heartbeat.interval;
  EXPECT_EQ(status_of([&] { Agent::start("a", 0, 1, options); }).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::rpc
