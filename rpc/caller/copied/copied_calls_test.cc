#include "gradwire/rpc/caller/copied/copied_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/fake_fence.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/rpc/membership/joining.h"

namespace gradwire::rpc {
namespace {

std::shared_ptr<Peer> peer(uint64_t incarnation) {
  WorkerAddress address;
  address.worker.incarnation = incarnation;
  return std::make_shared<Peer>(address, false);
}

class CopiedCallsTest : public ::testing::Test {
 protected:
  ~CopiedCallsTest() override {
    fences_->stop(absl::CancelledError("the end"));
    executor_->shutdown();
    timers_.shutdown();
  }

  // A call that waits for `fence`, or only for the earlier ones of its order.
  CopiedCalls::Call call(uint64_t id, const std::shared_ptr<FakeFence>& fence, uint64_t order = 0) {
    auto call = std::make_shared<CopiedCall>();
    call->id = id;
    call->envelope->mutable_request()->set_order_key(order);
    call->tensors.copies = fence;
    call->peer = peer_;
    return call;
  }
  bool delays(uint64_t incarnation, uint64_t order) const {
    proto::Request request;
    request.set_order_key(order);
    return calls_.delays(incarnation, request);
  }
  void add(const CopiedCalls::Call& call) { calls_.add(call); }

  // The ids of the calls that were sent, and "!" behind one whose copies have failed.
  std::string sent() const {
    MutexLock lock(mutex_);
    return sent_;
  }
  bool sends(const std::string& ids) {
    return eventually([&] { return sent() == ids; });
  }

  TimerQueue timers_;
  const std::shared_ptr<ThreadPool> executor_ = std::make_shared<ThreadPool>(ThreadPool::Options());
  const std::shared_ptr<FenceWatch> fences_ = std::make_shared<FenceWatch>(timers_, executor_);
  const std::shared_ptr<Peer> peer_ = peer(1);
  std::shared_ptr<int> services_ = std::make_shared<int>(0);

 private:
  mutable Mutex mutex_;
  std::string sent_ ABSL_GUARDED_BY(mutex_);
  CopiedCalls calls_{{.fences = fences_,
                      .self = [this] { return std::weak_ptr<void>(services_); },
                      .find_link = [](const std::shared_ptr<Peer>&) { return nullptr; },
                      .send =
                          [this](CopiedCall& call) {
                            MutexLock lock(mutex_);
                            sent_ += std::to_string(call.id) + (call.copied.ok() ? "" : "!");
                          }}};
};

TEST_F(CopiedCallsTest, ACallIsSentWhenItsBytesAreComplete) {
  const auto first = std::make_shared<FakeFence>(), second = std::make_shared<FakeFence>();
  add(call(1, first));
  add(call(2, second));
  second->done = true;
  EXPECT_TRUE(sends("2"));
  first->done = true;
  EXPECT_TRUE(sends("21"));
}

TEST_F(CopiedCallsTest, CallsOfOneOrderAreSentInTheirOrder) {
  const auto first = std::make_shared<FakeFence>(), third = std::make_shared<FakeFence>();
  EXPECT_FALSE(delays(1, 7));
  add(call(1, first, 7));
  EXPECT_TRUE(delays(1, 7));
  add(call(2, nullptr, 7));
  add(call(3, third, 7));
  third->done = true;
  // Neither another order, nor the same key for another worker.
  EXPECT_FALSE(delays(1, 8));
  EXPECT_FALSE(delays(2, 7));
  add(call(4, nullptr, 8));
  EXPECT_TRUE(sends("4"));
  EXPECT_TRUE(eventually([&] { return fences_->size() == 1; }));
  EXPECT_EQ(sent(), "4");
  first->done = true;
  EXPECT_TRUE(sends("4123"));
  EXPECT_FALSE(delays(1, 7));
}

TEST_F(CopiedCallsTest, ALostDeviceEndsItsCallAndLetsTheNextOneGo) {
  const auto first = std::make_shared<FakeFence>();
  add(call(1, first, 7));
  add(call(2, nullptr, 7));
  first->lost = true;
  EXPECT_TRUE(sends("1!2"));
  EXPECT_FALSE(delays(1, 7));
}

TEST_F(CopiedCallsTest, TheEndOfTheWatchEndsEveryCall) {
  add(call(1, std::make_shared<FakeFence>(), 7));
  add(call(2, nullptr, 7));
  fences_->stop(absl::CancelledError("the agent has stopped"));
  EXPECT_TRUE(sends("1!2"));
  EXPECT_FALSE(delays(1, 7));
}

TEST_F(CopiedCallsTest, NothingIsSentWithoutTheOwner) {
  const auto fence = std::make_shared<FakeFence>();
  add(call(1, fence));
  services_ = nullptr;
  fence->done = true;
  EXPECT_TRUE(eventually([&] { return fences_->size() == 0; }));
  EXPECT_EQ(sent(), "");
}

}  // namespace
}  // namespace gradwire::rpc
