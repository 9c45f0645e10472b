#include "gradwire/rpc/link/ahead/send_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/fake_fence.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/proto/rpc.pb.h"

namespace gradwire::rpc {
namespace {

// Records what is sent: "part 1: a,b" or "request: c, parts 1".
class FakeConnection : public transport::Connection {
 public:
  absl::StatusOr<uint64_t> send(transport::Message message) override {
    proto::Envelope envelope;
    EXPECT_TRUE(envelope.ParseFromString(message.header));
    std::string line = envelope.has_part() ? (envelope.part().dropped() ? "drop " : "part ") +
                                                 number(envelope.part().number())
                                           : "request of " + number(envelope.parts());
    line += ":";
    for (const transport::Buffer& buffer : message.buffers)
      line += " " + std::string(static_cast<const char*>(buffer.data()), buffer.size());
    MutexLock lock(mutex_);
    sent_.push_back(line);
    return uint64_t{sent_.size()};
  }
  void capture(uint64_t) override {}
  bool borrows(uint64_t) override { return false; }
  void close(absl::Status, absl::Duration) override {}
  std::string peer_address() const override { return "nowhere"; }

  std::vector<std::string> sent() const {
    MutexLock lock(mutex_);
    return sent_;
  }

 private:
  static std::string number(uint64_t n) { return std::to_string(n); }

  mutable Mutex mutex_;
  std::vector<std::string> sent_ ABSL_GUARDED_BY(mutex_);
};

class FakeLink : public LinkSender {
 public:
  FakeLink(TimerQueue& timers, std::atomic<uint64_t>& bytes, uint64_t number)
      : LinkSender(timers, bytes, number, std::make_shared<TransferWatch>(timers, TransferWatch::Options()),
                   "peer") {
    connection_ = connection;
    opened_ = true;
  }
  void end() { closed_ = true; }
  const std::shared_ptr<FakeConnection> connection = std::make_shared<FakeConnection>();
};

transport::Buffer tensor_buffer(const std::string& bytes,
                                transport::Buffer::Sharing sharing = transport::Buffer::Sharing::kOwned) {
  auto owner = std::make_shared<std::string>(bytes);
  return transport::Buffer(owner->data(), owner->size(), owner, sharing);
}

using Lines = std::vector<std::string>;

// A message of three buffers, each of which has a point of its own.
class SendAheadTest : public ::testing::Test {
 protected:
  SendAheadTest() {
    for (const char* each : {"a", "b", "c"}) tensors_.buffers.push_back(tensor_buffer(each));
    for (std::size_t i = 0; i < points_.size(); ++i) tensors_.progress.push_back({points_[i], i + 1});
    tensors_.copies = end_;
  }
  ~SendAheadTest() override {
    watch_->stop(absl::CancelledError("the end"));
    executor_->shutdown();
    timers_.shutdown();
  }

  void start() {
    SendAhead::start(
        watch_, std::move(tensors_), [this] { return has_link_ ? link_ : nullptr; },
        [this](const absl::Status& copied, EncodedTensors tensors) {
          result_ = std::move(tensors);
          status_ = copied;
          finished_ = true;
        });
  }
  void start_until_first_part() {
    start();
    reach(0);
    EXPECT_TRUE(sent({"part 1: a"}));
  }
  void reach(std::size_t point) { points_[point]->done = true; }
  // Returns when the object has handled the first two points. It asks for the third one before and after
  // that.
  void wait_for_the_last_point() {
    ASSERT_TRUE(eventually([&] { return points_[2]->polls >= 2; }));
  }
  void finish_points() {
    // The end first, so that the last buffers are not sent ahead.
    end_->done = true;
    for (const auto& point : points_) point->done = true;
  }
  void finish() {
    finish_points();
    ASSERT_TRUE(eventually([&] { return finished_.load(); }));
    EXPECT_EQ(result_.copies, nullptr);
  }
  void send_message(const std::shared_ptr<FakeLink>& link) {
    proto::Envelope envelope;
    envelope.mutable_request();
    ASSERT_TRUE(link->send_encoded(envelope, std::move(result_)).ok());
  }
  bool sent(const Lines& lines) {
    return eventually([&] { return link_->connection->sent() == lines; });
  }

  // The bytes of all parts, which may have been sent together.
  std::string all_parts() {
    std::string bytes;
    for (const std::string& line : link_->connection->sent()) {
      for (char each : line.substr(line.find(':') + 1)) bytes += each == ' ' ? "" : std::string(1, each);
    }
    return bytes;
  }

  TimerQueue timers_;
  const std::shared_ptr<ThreadPool> executor_ = std::make_shared<ThreadPool>(ThreadPool::Options());
  const std::shared_ptr<FenceWatch> watch_ = std::make_shared<FenceWatch>(timers_, executor_);
  std::atomic<uint64_t> bytes_{0};
  const std::shared_ptr<FakeLink> link_ = std::make_shared<FakeLink>(timers_, bytes_, 1);
  const std::vector<std::shared_ptr<FakeFence>> points_ = {
      std::make_shared<FakeFence>(), std::make_shared<FakeFence>(), std::make_shared<FakeFence>()};
  const std::shared_ptr<FakeFence> end_ = std::make_shared<FakeFence>();
  EncodedTensors tensors_;
  bool has_link_ = true;
  std::atomic<bool> finished_{false};
  absl::Status status_;
  EncodedTensors result_;
};

TEST_F(SendAheadTest, CompleteBuffersAreSentBeforeTheOthersAreComplete) {
  start_until_first_part();
  EXPECT_FALSE(finished_);
  reach(1);
  EXPECT_TRUE(sent({"part 1: a", "part 1: b"}));
  finish();
  EXPECT_TRUE(status_.ok()) << status_;
  send_message(link_);
  EXPECT_EQ(link_->connection->sent(), (Lines{"part 1: a", "part 1: b", "request of 1: c"}));
}

TEST_F(SendAheadTest, AMessageThatIsCompleteAtOnceHasNoParts) {
  finish_points();
  start();
  finish();
  send_message(link_);
  EXPECT_EQ(link_->connection->sent(), Lines{"request of 0: a b c"});
}

TEST_F(SendAheadTest, AllBuffersAreSentAheadIfTheMessageMustWaitForSomethingElse) {
  start();
  for (const auto& point : points_) point->done = true;
  EXPECT_TRUE(eventually([&] { return all_parts() == "abc"; }));
  EXPECT_FALSE(finished_);
  end_->done = true;
  ASSERT_TRUE(eventually([&] { return finished_.load(); }));
  send_message(link_);
  EXPECT_EQ(link_->connection->sent().back(), "request of 1:");
}

TEST_F(SendAheadTest, AMessageThatIsNotSentDropsItsParts) {
  start_until_first_part();
  finish();
  result_ = EncodedTensors();
  EXPECT_EQ(link_->connection->sent(), (Lines{"part 1: a", "drop 1:"}));
}

TEST_F(SendAheadTest, ALostDeviceDropsTheParts) {
  start_until_first_part();
  points_[1]->lost = true;
  ASSERT_TRUE(eventually([&] { return finished_.load(); }));
  EXPECT_EQ(status_.code(), absl::StatusCode::kInternal);
  result_ = EncodedTensors();
  EXPECT_EQ(link_->connection->sent(), (Lines{"part 1: a", "drop 1:"}));
}

TEST_F(SendAheadTest, AMessageOnAnotherLinkHasAllBuffers) {
  start_until_first_part();
  finish();
  const auto other = std::make_shared<FakeLink>(timers_, bytes_, 2);
  send_message(other);
  EXPECT_EQ(other->connection->sent(), Lines{"request of 0: a b c"});
  EXPECT_EQ(link_->connection->sent(), (Lines{"part 1: a", "drop 1:"}));
}

TEST_F(SendAheadTest, AMessageAfterTheEndOfItsLinkHasAllBuffers) {
  start_until_first_part();
  link_->end();
  finish();
  const auto next = std::make_shared<FakeLink>(timers_, bytes_, 2);
  send_message(next);
  EXPECT_EQ(next->connection->sent(), Lines{"request of 0: a b c"});
}

TEST_F(SendAheadTest, WithoutALinkEverythingTravelsWithTheMessage) {
  has_link_ = false;
  start();
  reach(0);
  reach(1);
  finish();
  send_message(link_);
  EXPECT_EQ(link_->connection->sent(), Lines{"request of 0: a b c"});
}

TEST_F(SendAheadTest, BorrowedBuffersAreNotSentAhead) {
  tensors_.buffers[1] = tensor_buffer("b", transport::Buffer::Sharing::kBorrowed);
  start_until_first_part();
  reach(1);
  wait_for_the_last_point();
  finish();
  send_message(link_);
  EXPECT_EQ(link_->connection->sent(), (Lines{"part 1: a", "request of 1: b c"}));
}

TEST_F(SendAheadTest, PartsBeyondTheLimitsTravelWithTheMessage) {
  // Another message has all of the room but one byte.
  PartsInFlight::Size large;
  large.bytes = PartsInFlight::kMaxBytes - 1;
  ASSERT_TRUE(link_->count_part(large, true));
  start_until_first_part();
  reach(1);
  wait_for_the_last_point();
  finish();
  send_message(link_);
  EXPECT_EQ(link_->connection->sent(), (Lines{"part 1: a", "request of 1: b c"}));
  // There is room again after the message.
  PartsInFlight::Size byte;
  byte.bytes = 1;
  EXPECT_TRUE(link_->count_part(byte, true));
  link_->forget_parts(byte);
  link_->forget_parts(large);
}

TEST_F(SendAheadTest, TheEndOfTheWatchEndsTheMessage) {
  start_until_first_part();
  watch_->stop(absl::CancelledError("the agent has stopped"));
  ASSERT_TRUE(eventually([&] { return finished_.load(); }));
  EXPECT_EQ(status_.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace gradwire::rpc
