#include "gradwire/rpc/testing/blocked_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::rpc::testing {
namespace {

int64_t next_of(int64_t x) { return x + 1; }
GRADWIRE_RPC(next_of)

std::string name_of(std::size_t rank) { return absl::StrCat("worker", rank); }

std::atomic<bool> blocked{false};
Mutex latch_mutex;
std::shared_ptr<absl::Notification> latch ABSL_GUARDED_BY(latch_mutex);
// The thread of the test.
std::thread::id caller ABSL_GUARDED_BY(latch_mutex);

}  // namespace

BlockedWorkers::BlockedWorkers() {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  options.heartbeat = {absl::Milliseconds(100), absl::Milliseconds(400), kDeadAfter};
  options.hooks = std::make_shared<const AgentHooks>(
      AgentHooks{.wrap_transport = nullptr, .loop_made = [this](std::shared_ptr<transport::EventLoop> loop) {
                   loops_.push_back(std::move(loop));
                 }});
  for (std::size_t rank = 0; rank < kSize; ++rank)
    agents_.push_back(Agent::start(name_of(rank), -1, 0, options));
  for (std::size_t from = 0; from < kSize; ++from) {
    for (std::size_t to = 0; to < kSize; ++to) {
      agents_[from]->wait_for_worker(name_of(to), absl::Seconds(60));
      EXPECT_TRUE(call(from, to));
    }
  }
}

BlockedWorkers::~BlockedWorkers() {
  for (const auto& agent : agents_) agent->shutdown(/*graceful=*/false);
}

bool BlockedWorkers::call(std::size_t from, std::size_t to) {
  const Destination destination = Destination(name_of(to)).with_timeout(absl::Seconds(30));
  return agents_.at(from)->rpc_sync<&next_of>(destination, int64_t{1}) == 2;
}

void BlockedWorkers::block() {
  std::shared_ptr<absl::Notification> go_on;
  bool others_wait = on_duty();
  {
    MutexLock lock(latch_mutex);
    go_on = latch;
    others_wait |= caller == std::this_thread::get_id();
  }
  if (go_on == nullptr) return;
  blocks();
  EXPECT_FALSE(others_wait);
  if (!others_wait) go_on->WaitForNotification();
}

void BlockedWorkers::blocks() { blocked = true; }

void BlockedWorkers::expect_nobody_waits(const std::function<std::shared_ptr<void>()>& start) {
  ::testing::internal::CaptureStderr();
  blocked = false;
  // The thread may return from its wait after the test has ended.
  const auto go_on = std::make_shared<absl::Notification>();
  {
    MutexLock lock(latch_mutex);
    latch = go_on;
    caller = std::this_thread::get_id();
  }
  std::shared_ptr<void> kept = start();
  EXPECT_TRUE(eventually([] { return blocked.load(); }));
  const absl::Time end = absl::Now() + kDeadAfter + absl::Milliseconds(300);
  do {
    for (std::size_t from = 0; from < kSize; ++from) {
      for (std::size_t to = 0; to < kSize; ++to) {
        EXPECT_TRUE(call(from, to));
        EXPECT_NE(agents_[from]->worker_state(name_of(to)), WorkerState::kDead);
      }
    }
  } while (absl::Now() < end);
  {
    MutexLock lock(latch_mutex);
    latch = nullptr;
  }
  go_on->Notify();
  kept = nullptr;
  EXPECT_THAT(captured_lines("has read no message for"), ::testing::IsEmpty());
}

}  // namespace gradwire::rpc::testing
