#include "gradwire/rpc/rref/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/rref/reference_codec.h"

namespace gradwire::rpc {
namespace {

// An agent without connections. It records the messages of its references, and answers none.
class RecordingHost : public ReferenceHost {
 public:
  const Worker& self() const override { return self_; }
  Id next_id() override { return {self_.incarnation, ++last_id_}; }
  const std::shared_ptr<ThreadPool>& executor() const override { return executor_; }
  TimerQueue& timers() const override { return timers_; }
  const std::shared_ptr<FenceWatch>& fences() const override { return no_fences_; }
  const std::shared_ptr<StreamOrder>& stream_order() const override { return no_order_; }
  absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const override {
    if (incarnation == peer_.incarnation) return peer_;
    return absl::NotFoundError("unknown worker");
  }
  absl::Status worker_status(const Worker& /*worker*/) const override { return absl::OkStatus(); }
  Future<ServiceReply> call_service(const Worker& /*to*/, uint32_t service, std::string /*body*/,
                                    std::unique_ptr<TensorSet> /*tensors*/,
                                    const ServiceOptions& /*options*/) override {
    MutexLock lock(mutex_);
    services_.push_back(service);
    unanswered_.emplace_back(executor_);
    return unanswered_.back().future();
  }
  void on_accused(uint64_t /*incarnation*/) override {}
  std::weak_ptr<Agent> weak_agent() override { return {}; }

  const Worker& peer() const { return peer_; }
  std::vector<uint32_t> services() const {
    MutexLock lock(mutex_);
    return services_;
  }
  // Fails the messages that were not answered: each of them keeps the driver alive.
  void end() {
    std::vector<Promise<ServiceReply>> unanswered;
    {
      MutexLock lock(mutex_);
      unanswered.swap(unanswered_);
    }
    for (Promise<ServiceReply>& promise : unanswered) promise.set_error(absl::CancelledError("the end"));
    executor_->shutdown();
  }

 private:
  const Worker self_{"a", 0, 1};
  const Worker peer_{"b", 1, 2};
  const std::shared_ptr<ThreadPool> executor_ = std::make_shared<ThreadPool>(ThreadPool::Options());
  const std::shared_ptr<FenceWatch> no_fences_;
  const std::shared_ptr<StreamOrder> no_order_;
  mutable TimerQueue timers_;
  std::atomic<uint64_t> last_id_{0};
  mutable Mutex mutex_;
  std::vector<uint32_t> services_ ABSL_GUARDED_BY(mutex_);
  std::vector<Promise<ServiceReply>> unanswered_ ABSL_GUARDED_BY(mutex_);
};

class NoArrivalOrder : public ArrivalOrder {
 public:
  Departures departures(uint64_t /*incarnation*/) const override { return {}; }
  bool require(uint64_t /*incarnation*/, const Departures& /*sent*/) override { return true; }
  bool settled(uint64_t /*incarnation*/) override { return true; }
};

const TypeOps kType{.name = [] { return std::string("int"); }, .encode = nullptr};

class SentReference : public ::testing::Test {
 protected:
  void SetUp() override {
    service_->driver().worker_joined(host_.peer());
    handle_ = service_->own(std::make_shared<int>(1), &kType);
    ASSERT_TRUE(service_->add_reference(handle_, host_.peer(), /*is_answer=*/false, payload_).ok());
  }
  void TearDown() override {
    handle_ = nullptr;
    service_->driver().shutdown(absl::CancelledError("the end"));
    host_.end();
  }

  RecordingHost host_;
  NoArrivalOrder arrival_order_;
  const std::shared_ptr<RRefService> service_ = std::make_shared<RRefService>(host_, arrival_order_);
  std::shared_ptr<RRefHandle> handle_;
  proto::Payload payload_;
};

TEST_F(SentReference, OnAnOpenConnectionAsksNothing) {
  service_->sent(payload_, host_.peer(), [] { return false; });
  EXPECT_TRUE(host_.services().empty());
}

TEST_F(SentReference, OnAConnectionThatEndedBeforeIsRevoked) {
  // The next connection was admitted before the sender has reported its message as sent.
  service_->driver().link_restored(host_.peer());
  EXPECT_TRUE(host_.services().empty());
  service_->sent(payload_, host_.peer(), [] { return true; });
  EXPECT_EQ(host_.services(), std::vector<uint32_t>{kForkRevoke});
}

// The connection ends, and the next one is admitted, just after the sender has found the connection open.
// Either the restored link must find the reference as sent, or the sender must find the connection closed.
TEST_F(SentReference, OnAConnectionThatEndsMeanwhileIsRevoked) {
  std::promise<void> restored;
  std::thread transport;
  service_->sent(payload_, host_.peer(), [&] {
    transport = std::thread([&] {
      service_->driver().link_restored(host_.peer());
      restored.set_value();
    });
    // link_restored() must wait for the end of sent(), so this wait ends by its timeout. If it did not wait,
    // it would find the reference unsent within that time.
    EXPECT_EQ(restored.get_future().wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
    return false;
  });
  transport.join();
  EXPECT_EQ(host_.services(), std::vector<uint32_t>{kForkRevoke});
}

class Waits : public ::testing::Test {
 protected:
  void TearDown() override {
    service_->driver().shutdown(absl::CancelledError("the end"));
    host_.end();
  }
  // A reference to a value that is being made.
  std::shared_ptr<RRefHandle> awaited() {
    return service_->begin_remote(host_.self(), "int", Promise<void>())->handle;
  }
  AgentTables tables() const {
    AgentTables tables;
    service_->driver().count(tables);
    return tables;
  }

  RecordingHost host_;
  NoArrivalOrder arrival_order_;
  const std::shared_ptr<RRefService> service_ = std::make_shared<RRefService>(host_, arrival_order_);
};

TEST_F(Waits, AreCountedUntilTheyEnd) {
  std::vector<absl::Status> ends;
  const auto note = [&ends](const absl::StatusOr<OwnedValue>& found) { ends.push_back(found.status()); };
  std::shared_ptr<RRefHandle> made = awaited();
  std::shared_ptr<RRefHandle> freed = awaited();
  OwnedValues& values = service_->values();
  const uint64_t given_up = values.find(made->rref(), absl::InfiniteFuture(), note);
  EXPECT_NE(values.find(made->rref(), absl::InfiniteFuture(), note), 0u);
  EXPECT_NE(values.find(freed->rref(), absl::InfiniteFuture(), note), 0u);
  EXPECT_EQ(tables().waits_for_values, 3u);
  values.give_up(made->rref(), given_up, absl::AbortedError("enough"));
  values.give_up(made->rref(), given_up, absl::AbortedError("again"));
  EXPECT_EQ(tables().waits_for_values, 2u);
  values.set(made->rref(), OwnedValue{std::make_shared<int>(1), &kType, nullptr, nullptr});
  EXPECT_EQ(tables().waits_for_values, 1u);
  freed = nullptr;
  EXPECT_EQ(tables().waits_for_values, 0u);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(ends[1].ok());
  EXPECT_EQ(ends[2].code(), absl::StatusCode::kNotFound);
  // The value exists, so nothing waits.
  EXPECT_EQ(values.find(made->rref(), absl::InfiniteFuture(), note), 0u);
  EXPECT_EQ(ends.size(), 4u);
}

TEST_F(Waits, ForAnUnknownReferenceLeavesNothing) {
  const Id unknown{2, 17};
  absl::Status end;
  const uint64_t wait =
      service_->values().find(unknown, absl::InfiniteFuture(),
                              [&end](const absl::StatusOr<OwnedValue>& found) { end = found.status(); });
  EXPECT_EQ(tables().values, 1u);
  service_->values().give_up(unknown, wait, absl::CancelledError("enough"));
  EXPECT_EQ(end.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(tables().values, 0u);
}

// A caller can make each of its calls wait for one value, and hold the last reference to the next one.
TEST_F(Waits, LongChainEndsOnAShortStack) {
  constexpr int kLength = 10'000;
  int ended = 0;
  std::shared_ptr<RRefHandle> first = awaited();
  std::shared_ptr<RRefHandle> last = first;
  for (int i = 0; i < kLength; ++i) {
    std::shared_ptr<RRefHandle> next = awaited();
    service_->values().find(
        last->rref(), absl::InfiniteFuture(),
        [next, &ended](const absl::StatusOr<OwnedValue>& found) { ended += found.ok() ? 0 : 1; });
    last = std::move(next);
  }
  last = nullptr;
  EXPECT_EQ(tables().waits_for_values, static_cast<std::size_t>(kLength));
  first = nullptr;
  EXPECT_EQ(ended, kLength);
  EXPECT_EQ(tables().values, 0u);
}

TEST(CallsBeforeCreation, EndWithItsErrorAndLeaveWhenTheyEnd) {
  CallsBeforeCreation calls;
  std::vector<int> ended;
  const auto end = [&ended](int number) {
    return [&ended, number](const absl::Status& status) { ended.push_back(status.ok() ? 0 : number); };
  };
  const uint64_t first = calls.add();
  const uint64_t second = calls.add();
  const uint64_t third = calls.add();
  EXPECT_EQ(calls.size(), 3u);
  calls.sent(first, end(1));
  calls.sent(second, end(2));
  calls.remove(first);
  EXPECT_EQ(calls.size(), 2u);
  calls.created(absl::UnknownError("cannot be made"));
  EXPECT_EQ(ended, std::vector<int>{2});
  // The creation failed while the third call was being sent.
  calls.sent(third, end(3));
  EXPECT_EQ(ended, (std::vector<int>{2, 3}));
  EXPECT_EQ(calls.size(), 0u);
  EXPECT_EQ(calls.add(), 0u);
}

TEST(CallsBeforeCreation, GoOnWhenTheValueWasMade) {
  CallsBeforeCreation calls;
  int ended = 0;
  const uint64_t sent = calls.add();
  const uint64_t sending = calls.add();
  calls.sent(sent, [&ended](const absl::Status&) { ++ended; });
  calls.created(absl::OkStatus());
  calls.sent(sending, [&ended](const absl::Status&) { ++ended; });
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(calls.size(), 0u);
}

}  // namespace
}  // namespace gradwire::rpc
