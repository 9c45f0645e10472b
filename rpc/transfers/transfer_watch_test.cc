#include "gradwire/rpc/transfers/transfer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Keeps all lines, "* " before last ones, and all moving lines.
class Lines : public ProgressOutput {
 public:
  bool enabled() const override { return enabled_; }
  bool can_move() const override { return moves_; }
  void draw(const void*, absl::string_view text) override { add(std::string(text)); }
  void clear(const void*) override {}
  void log(const ProgressState& state, absl::Duration, bool finished) override {
    add((finished ? "* " : "") + state.text);
    MutexLock lock(mutex_);
    if (!finished) counts_.emplace_back(*state.done, *state.total);
  }
  std::vector<std::string> take() {
    MutexLock lock(mutex_);
    return std::exchange(lines_, {});
  }
  std::vector<std::pair<int64_t, int64_t>> counts() {
    MutexLock lock(mutex_);
    return counts_;
  }
  bool enabled_ = true;
  bool moves_ = false;

 private:
  void add(std::string line) {
    MutexLock lock(mutex_);
    lines_.push_back(std::move(line));
  }
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int64_t, int64_t>> counts_ ABSL_GUARDED_BY(mutex_);
};

// How far a message of the test is, and how often it was measured.
struct Message {
  Mutex mutex;
  std::optional<uint64_t> done ABSL_GUARDED_BY(mutex) = 0;
  int measured ABSL_GUARDED_BY(mutex) = 0;
};

class TransferWatchTest : public ::testing::Test {
 protected:
  void watch(uint64_t over) {
    watch_ = std::make_shared<TransferWatch>(
        timers_, TransferWatch::Options{.self = "a", .over = over, .output = &lines_});
  }

  std::shared_ptr<Message> begin(Transfer::Direction direction, const std::string& function, uint64_t bytes,
                                 uint64_t link = 1) {
    auto message = std::make_shared<Message>();
    watch_->begin({.direction = direction,
                   .what = "the call of \"" + function + "\"",
                   .worker = "b",
                   .link = link,
                   .bytes = bytes,
                   .progress = [message]() -> std::optional<uint64_t> {
                     MutexLock lock(message->mutex);
                     ++message->measured;
                     return message->done;
                   }});
    return message;
  }

  static void set(Message& message, std::optional<uint64_t> done) {
    MutexLock lock(message.mutex);
    message.done = done;
  }

  // Lets one second pass, and waits until the message has been measured in it, and the lines of this second
  // have been written: the watch schedules its next measurement last.
  void pass(Message& message) {
    const int before = measured(message);
    clock_.advance(absl::Seconds(1));
    ASSERT_TRUE(eventually(
        [&] { return measured(message) > before && (timers_.size() == 1 || watch_->size() == 0); }));
  }
  static int measured(Message& message) {
    MutexLock lock(message.mutex);
    return message.measured;
  }
  void pass(Message& message, int seconds) {
    for (int i = 0; i < seconds; ++i) ASSERT_NO_FATAL_FAILURE(pass(message));
  }

  ManualClock clock_;
  Lines lines_;
  TimerQueue timers_{clock_};
  std::shared_ptr<TransferWatch> watch_;
};

constexpr auto kSending = Transfer::Direction::kSending;
constexpr auto kReceiving = Transfer::Direction::kReceiving;

TEST_F(TransferWatchTest, OnlyLargerMessagesAreWatched) {
  watch(kMiB);
  EXPECT_FALSE(watch_->watches(kMiB));
  EXPECT_TRUE(watch_->watches(kMiB + 1));
  watch(0);
  EXPECT_FALSE(watch_->watches(uint64_t{1} << 60));
  lines_.enabled_ = false;
  watch(kMiB);
  EXPECT_FALSE(watch_->watches(kMiB + 1));
}

TEST_F(TransferWatchTest, AMessageThatEndsSoonLeavesNoLine) {
  watch(kMiB);
  const auto message = begin(kSending, "train", 40 * kMiB);
  pass(*message, 5);
  set(*message, 40 * kMiB);
  pass(*message);
  EXPECT_THAT(lines_.take(), IsEmpty());
  EXPECT_EQ(watch_->size(), 0);
}

TEST_F(TransferWatchTest, AMessageThatHasLeftAlreadyIsNotWatched) {
  watch(kMiB);
  watch_->begin({.direction = kSending, .bytes = 9 * kMiB, .progress = [] { return 9 * kMiB; }});
  watch_->begin({.direction = kSending, .bytes = 9 * kMiB, .progress = [] { return std::nullopt; }});
  EXPECT_EQ(watch_->size(), 0);
}

TEST_F(TransferWatchTest, ASentMessageHasALineInTenSecondsAndALastOne) {
  watch(kMiB);
  const auto message = begin(kSending, "train", 400 * kMiB);
  pass(*message, 9);
  set(*message, 100 * kMiB);
  pass(*message);
  EXPECT_THAT(lines_.take(),
              ElementsAre("worker \"a\" is sending the call of \"train\" to worker \"b\": 100.0 MiB of "
                          "400.0 MiB, 10.0 MiB/s"));
  set(*message, 300 * kMiB);
  pass(*message, 9);
  EXPECT_THAT(lines_.take(), IsEmpty());
  pass(*message);
  EXPECT_THAT(lines_.take(),
              ElementsAre("worker \"a\" is sending the call of \"train\" to worker \"b\": 300.0 MiB of "
                          "400.0 MiB, 20.0 MiB/s"));
  EXPECT_THAT(lines_.counts(), ElementsAre(std::pair<int64_t, int64_t>(100 * kMiB, 400 * kMiB),
                                           std::pair<int64_t, int64_t>(300 * kMiB, 400 * kMiB)));
  set(*message, 400 * kMiB);
  pass(*message, 1);
  EXPECT_THAT(lines_.take(), ElementsAre("* worker \"a\" has sent the call of \"train\" to worker \"b\": "
                                         "400.0 MiB, 19.0 MiB/s"));
  EXPECT_EQ(watch_->size(), 0);
}

TEST_F(TransferWatchTest, AReceivedMessageEndsWhenItIsComplete) {
  watch(kMiB);
  const auto message = begin(kReceiving, "train", 400 * kMiB, 3);
  watch_->received(4);  // Another link.
  set(*message, 200 * kMiB);
  pass(*message, 10);
  EXPECT_THAT(lines_.take(),
              ElementsAre("worker \"a\" is receiving the call of \"train\" from worker \"b\": 200.0 MiB of "
                          "400.0 MiB, 20.0 MiB/s"));
  // All bytes are there, but the message is handed over only now.
  set(*message, 400 * kMiB);
  pass(*message, 2);
  EXPECT_EQ(watch_->size(), 1);
  watch_->received(3);
  pass(*message);
  EXPECT_THAT(lines_.take(), ElementsAre("* worker \"a\" has received the call of \"train\" from worker "
                                         "\"b\": 400.0 MiB, 30.8 MiB/s"));
}

TEST_F(TransferWatchTest, TheEndOfTheConnectionEndsItsMessages) {
  watch(kMiB);
  const auto message = begin(kSending, "train", 400 * kMiB, 3);
  const auto other = begin(kReceiving, "other", 4 * kMiB, 4);
  set(*message, 100 * kMiB);
  pass(*message, 10);
  lines_.take();
  set(*message, std::nullopt);
  watch_->end_link(3);
  pass(*other);
  EXPECT_THAT(lines_.take(), ElementsAre("* worker \"a\" has not sent the call of \"train\" to worker \"b\" "
                                         "completely: the connection ended after 100.0 MiB of 400.0 MiB"));
  EXPECT_EQ(watch_->size(), 1);
}

// The lines of two messages are 10 s apart, too. The oldest is named.
TEST_F(TransferWatchTest, SeveralMessagesShareTheLines) {
  watch(kMiB);
  const auto first = begin(kSending, "first", 40 * kMiB, 1);
  pass(*first, 5);
  const auto second = begin(kReceiving, "second", 50 * kMiB, 2);
  pass(*first, 5);
  EXPECT_THAT(lines_.take(), ElementsAre("worker \"a\" is sending the call of \"first\" to worker \"b\": 0 B "
                                         "of 40.0 MiB, 0 B/s; 1 other large message is on its way"));
  set(*first, 40 * kMiB);
  // The second one is due after 15 s, but the last line was written after 10 s.
  pass(*second, 9);
  EXPECT_THAT(lines_.take(),
              ElementsAre("* worker \"a\" has sent the call of \"first\" to worker \"b\": 40.0 "
                          "MiB, 3.6 MiB/s"));
  pass(*second);
  EXPECT_THAT(lines_.take(),
              ElementsAre("worker \"a\" is receiving the call of \"second\" from worker \"b\": "
                          "0 B of 50.0 MiB, 0 B/s"));
}

TEST_F(TransferWatchTest, OnATerminalALineMoves) {
  lines_.moves_ = true;
  watch(kMiB);
  const auto message = begin(kSending, "train", 40 * kMiB);
  pass(*message);
  set(*message, 3 * kMiB);
  pass(*message);
  EXPECT_THAT(
      lines_.take(),
      ElementsAre("worker \"a\" is sending the call of \"train\" to worker \"b\": 0 B of 40.0 MiB, 0 "
                  "B/s (1s)",
                  "worker \"a\" is sending the call of \"train\" to worker \"b\": 3.0 MiB of 40.0 MiB, "
                  "3.0 MiB/s (2s)"));
}

TEST_F(TransferWatchTest, ALineSaysIfOnlyWholeTensorsAreCounted) {
  watch(kMiB);
  auto measured = std::make_shared<Message>();
  watch_->begin({.direction = kSending,
                 .what = "the call of \"train\"",
                 .worker = "b",
                 .bytes = 400 * kMiB,
                 .whole_buffers = true,
                 .progress = [measured]() -> std::optional<uint64_t> {
                   MutexLock lock(measured->mutex);
                   ++measured->measured;
                   return measured->done;
                 }});
  pass(*measured, 10);
  EXPECT_THAT(lines_.take(),
              ElementsAre("worker \"a\" is sending the call of \"train\" to worker \"b\": 0 B of 400.0 MiB, "
                          "0 B/s; the transport reports a tensor only when it is complete"));
  set(*measured, 400 * kMiB);
  pass(*measured);
  EXPECT_THAT(lines_.take(), ElementsAre("* worker \"a\" has sent the call of \"train\" to worker \"b\": "
                                         "400.0 MiB, 36.4 MiB/s"));
}

// A peer decides how large its messages are, and what they name.
TEST_F(TransferWatchTest, NumberAndNamesAreBounded) {
  watch(kMiB);
  const auto first = begin(kReceiving, std::string(100'000, 'x'), 40 * kMiB);
  for (std::size_t i = 0; i < 2 * TransferWatch::kMostTransfers; ++i) begin(kReceiving, "f", 4 * kMiB);
  EXPECT_EQ(watch_->size(), TransferWatch::kMostTransfers);
  pass(*first, 10);
  const std::vector<std::string> lines = lines_.take();
  ASSERT_EQ(lines.size(), 1);
  EXPECT_LT(lines[0].size(), 400);
}

TEST_F(TransferWatchTest, AfterTheEndNothingIsWatched) {
  watch(kMiB);
  const auto message = begin(kSending, "train", 40 * kMiB);
  watch_->end();
  EXPECT_EQ(watch_->size(), 0);
  begin(kSending, "later", 40 * kMiB);
  EXPECT_EQ(watch_->size(), 0);
  // The timer that is left does not keep the watch.
  watch_.reset();
  clock_.advance(absl::Seconds(2));
}

}  // namespace
}  // namespace gradwire::rpc
