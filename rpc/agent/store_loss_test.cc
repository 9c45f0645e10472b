#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/cut_store.h"
#include "gradwire/store/hash_store.h"

// References while one worker, or every worker, cannot reach the store.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kNoticeTimeout = absl::Seconds(60);

struct KeptBox {
  explicit KeptBox(int64_t start) : value(start) {}
  int64_t get() const { return value; }
  int64_t value;
};
GRADWIRE_RPC_CLASS(KeptBox, int64_t)
GRADWIRE_RPC_METHOD(KeptBox, get)

Mutex kept_mutex;
std::optional<RRef<KeptBox>> kept ABSL_GUARDED_BY(kept_mutex);

void keep(RRef<KeptBox> box) {
  MutexLock lock(kept_mutex);
  kept = std::move(box);
}
GRADWIRE_RPC(keep)

std::optional<RRef<KeptBox>> take_kept() {
  MutexLock lock(kept_mutex);
  return std::exchange(kept, std::nullopt);
}

// Whether the agent has noticed that it cannot reach the store.
bool cannot_reach_store(const std::shared_ptr<Agent>& agent) {
  try {
    agent->wait_for_worker("nobody", absl::Milliseconds(1));
  } catch (const Error& error) {
    return absl::IsUnavailable(error.status());
  }
  return false;
}

bool is_gone(const std::shared_ptr<Agent>& agent, const std::string& name) {
  const WorkerState state = agent->worker_state(name);
  return state == WorkerState::kDead || state == WorkerState::kLeft;
}

class StoreLoss : public ::testing::Test {
 protected:
  // Starts a worker. `store`: the shared store if null, else a store in front of it.
  std::shared_ptr<Agent> start(const std::string& name, std::shared_ptr<store::Store> store = nullptr) {
    RpcBackendOptions options;
    options.store = store != nullptr ? std::move(store) : store_;
    return Agent::start(name, -1, 0, options);
  }

  const std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  const std::shared_ptr<testing::CutStore> cut_ = std::make_shared<testing::CutStore>(store_);
};

TEST_F(StoreLoss, OwnerCutOffAloneKeepsWhatADeadHolderPassedToAStranger) {
  auto owner = start("owner", cut_);
  auto holder = start("holder");
  owner->wait_for_worker("holder", kNoticeTimeout);
  std::optional<RRef<KeptBox>> box = holder->remote<KeptBox>("owner", int64_t{7});
  box->confirmed().wait();
  cut_->cut();
  ASSERT_TRUE(eventually([&] { return cannot_reach_store(owner); }));
  // The owner does not know this worker, so it cannot ask which references it has received from the dead one.
  auto stranger = start("stranger");
  holder->wait_for_worker("stranger", kNoticeTimeout);
  holder->rpc_sync<&keep>("stranger", *box);
  holder->shutdown(/*graceful=*/false);
  ASSERT_TRUE(eventually([&] { return is_gone(owner, "holder"); }));
  cut_->restore();
  {
    std::optional<RRef<KeptBox>> passed = take_kept();
    ASSERT_TRUE(passed.has_value());
    AgentGuard guard(stranger);
    EXPECT_EQ(passed->rpc_sync<&KeptBox::get>(), 7);
  }
  // The owner now reads the death in the log, so that it can release the value.
  EXPECT_TRUE(eventually([&] { return owner->tables().owned_rrefs == 0; }));
  stranger->shutdown(/*graceful=*/false);
  owner->shutdown(/*graceful=*/false);
}

TEST_F(StoreLoss, WorkerCutOffAnswersForTheDeathOfAStranger) {
  auto owner = start("owner");
  auto witness = start("witness", cut_);
  owner->wait_for_worker("witness", kNoticeTimeout);
  cut_->cut();
  ASSERT_TRUE(eventually([&] { return cannot_reach_store(witness); }));
  auto holder = start("holder");
  {
    const RRef<KeptBox> box = holder->remote<KeptBox>("owner", int64_t{7});
    box.confirmed().wait();
    EXPECT_EQ(owner->tables().owned_rrefs, 1u);
    holder->shutdown(/*graceful=*/false);
    // The owner's fence asks the witness, which cannot read in the log that the holder has joined.
    EXPECT_TRUE(eventually([&] { return owner->tables().owned_rrefs == 0; }));
  }
  EXPECT_TRUE(cannot_reach_store(witness));
  witness->shutdown(/*graceful=*/false);
  owner->shutdown(/*graceful=*/false);
}

TEST_F(StoreLoss, ValuesOfTheDeadStayUntilTheLogCanBeRead) {
  auto owner = start("owner", cut_);
  auto holder = start("holder", cut_);
  owner->wait_for_worker("holder", kNoticeTimeout);
  const RRef<KeptBox> box = holder->remote<KeptBox>("owner", int64_t{7});
  box.confirmed().wait();
  cut_->cut();
  ASSERT_TRUE(eventually([&] { return cannot_reach_store(owner); }));
  holder->shutdown(/*graceful=*/false);
  ASSERT_TRUE(eventually([&] { return is_gone(owner, "holder"); }));
  // Calls to the lost worker fail at once. The value that it held is kept.
  EXPECT_EQ(owner->tables().owned_rrefs, 1u);
  cut_->restore();
  EXPECT_TRUE(eventually([&] { return owner->tables().owned_rrefs == 0; }));
  owner->shutdown(/*graceful=*/false);
}

std::string name_of_worker() { return Agent::current()->get_worker_info().name; }
GRADWIRE_RPC(name_of_worker)

TEST_F(StoreLoss, StoreThatLostItsKeysEndsJoinsForGoodAndMembersGoOn) {
  auto a = start("a", cut_);
  auto b = start("b", cut_);
  a->wait_for_worker("b", kNoticeTimeout);
  cut_->replace();
  for (const std::shared_ptr<Agent>& agent : {a, b}) {
    const absl::Status ended = status_of([&] { agent->wait_for_worker("nobody", kNoticeTimeout); });
    EXPECT_EQ(ended.code(), absl::StatusCode::kAborted) << ended;
    EXPECT_THAT(std::string(ended.message()), HasSubstr("restart all of them to have joins again"));
  }
  // Nobody asks the store again, whatever happens.
  const int calls = cut_->calls();
  EXPECT_EQ(status_of([&] { a->wait_for_worker("nobody"); }).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(a->wait_for_worker("b", kNoticeTimeout).name, "b");
  EXPECT_EQ(a->rpc_sync<&name_of_worker>("b"), "b");
  EXPECT_EQ(b->rpc_sync<&name_of_worker>("a"), "a");
  b->shutdown(/*graceful=*/false);
  EXPECT_TRUE(eventually([&] { return is_gone(a, "b"); }));
  EXPECT_TRUE(status_of([&] { a->shutdown(/*graceful=*/true, kNoticeTimeout); }).ok());
  EXPECT_EQ(cut_->calls(), calls);
}

TEST_F(StoreLoss, GracefulShutdownOfAFixedGroupWhoseStoreLostItsKeysIsAborted) {
  RpcBackendOptions options;
  options.store = cut_;
  std::shared_ptr<Agent> b;
  std::thread joining([&] { b = Agent::start("b", 1, 2, options); });
  auto a = Agent::start("a", 0, 2, options);
  joining.join();
  cut_->replace();
  const absl::Status ended = status_of([&] { a->shutdown(/*graceful=*/true, kNoticeTimeout); });
  EXPECT_EQ(ended.code(), absl::StatusCode::kAborted) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("restart all of them to have joins again"));
  b->shutdown(/*graceful=*/false);
}

// A join is possible as soon as the store is back. A wait that fails at once would make a program that
// repeats it spin.
TEST_F(StoreLoss, WaitForAWorkerOutlastsAStoreThatIsAway) {
  auto a = start("a", cut_);
  cut_->cut();
  ASSERT_TRUE(eventually([&] { return cannot_reach_store(a); }));
  absl::Status joined[2];
  std::vector<std::thread> waiting;
  for (absl::Status& status : joined) {
    waiting.emplace_back([&] { status = status_of([&] { a->wait_for_worker("late", kNoticeTimeout); }); });
  }
  // The wait above may still be counted, but not beside later ones.
  EXPECT_TRUE(eventually([&] { return a->tables().waiting_for_workers == 2; }));
  cut_->restore();
  auto late = start("late");
  for (std::thread& thread : waiting) thread.join();
  for (const absl::Status& status : joined) EXPECT_TRUE(status.ok()) << status;
  // Without a limit the wait ends, because nobody knows whether the store comes back.
  cut_->cut();
  EXPECT_EQ(status_of([&] { a->wait_for_worker("nobody"); }).code(), absl::StatusCode::kUnavailable);
  late->shutdown(/*graceful=*/false);
  a->shutdown(/*graceful=*/false);
}

}  // namespace
}  // namespace gradwire::rpc
