#include "gradwire/rpc/streams/stream_buffer.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "gradwire/rpc/streams/stream_reader.h"

namespace gradwire::rpc {
namespace {

constexpr TakeLimits kTwoItems = {2, 1'000};

TEST(StreamBuffer, TakesAreTheCreditOfTheProducer) {
  StreamBuffer buffer;
  EXPECT_FALSE(buffer.has_room());
  ASSERT_TRUE(buffer.add_take(0, kTwoItems).ok());
  EXPECT_TRUE(buffer.has_room());
  buffer.push(1);
  EXPECT_TRUE(buffer.has_room());
  buffer.push(1);
  EXPECT_FALSE(buffer.has_room());
  ASSERT_TRUE(buffer.add_take(1, kTwoItems).ok());
  EXPECT_TRUE(buffer.has_room());
  // The answer takes its credit with it.
  EXPECT_EQ(buffer.next_answer()->items, 2u);
  EXPECT_TRUE(buffer.has_room());
  buffer.push(1);
  EXPECT_EQ(buffer.next_answer()->items, 1u);
  EXPECT_FALSE(buffer.has_room());
}

TEST(StreamBuffer, BytesAreBoundedToo) {
  StreamBuffer buffer;
  ASSERT_TRUE(buffer.add_take(0, {100, 10}).ok());
  buffer.push(9);
  EXPECT_TRUE(buffer.has_room());
  buffer.push(9);
  EXPECT_FALSE(buffer.has_room());
  // The second item does not fit into the answer.
  EXPECT_EQ(buffer.next_answer()->items, 1u);
  EXPECT_EQ(buffer.items(), 1u);
}

TEST(StreamBuffer, ItemThatIsLargerThanTheLimitTravelsAlone) {
  StreamBuffer buffer;
  ASSERT_TRUE(buffer.add_take(0, {100, 10}).ok());
  ASSERT_TRUE(buffer.add_take(1, {100, 10}).ok());
  buffer.push(1'000);
  buffer.push(1);
  EXPECT_EQ(buffer.next_answer()->items, 1u);
  EXPECT_EQ(buffer.next_answer()->items, 1u);
}

TEST(StreamBuffer, TakesAreAnsweredInTheirOrder) {
  StreamBuffer buffer;
  ASSERT_TRUE(buffer.add_take(1, kTwoItems).ok());
  buffer.push(1);
  buffer.push(1);
  buffer.push(1);
  EXPECT_FALSE(buffer.can_answer());
  EXPECT_FALSE(buffer.next_answer().has_value());
  ASSERT_TRUE(buffer.add_take(0, kTwoItems).ok());
  auto first = buffer.next_answer();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->sequence, 0u);
  EXPECT_EQ(first->items, 2u);
  auto second = buffer.next_answer();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->sequence, 1u);
  EXPECT_EQ(second->items, 1u);
}

TEST(StreamBuffer, EndComesAfterTheLastItemAndForEveryTake) {
  StreamBuffer buffer;
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(buffer.add_take(i, kTwoItems).ok());
  for (int i = 0; i < 3; ++i) buffer.push(1);
  buffer.end();
  EXPECT_FALSE(buffer.has_room());
  auto answer = buffer.next_answer();
  EXPECT_EQ(answer->items, 2u);
  EXPECT_FALSE(answer->last);
  answer = buffer.next_answer();
  EXPECT_EQ(answer->items, 1u);
  EXPECT_TRUE(answer->last);
  answer = buffer.next_answer();
  EXPECT_EQ(answer->items, 0u);
  EXPECT_TRUE(answer->last);
  EXPECT_FALSE(buffer.can_answer());
}

TEST(StreamBuffer, BeforeTheReturnSomeItemsOfTheHandlerHaveRoom) {
  StreamBuffer buffer;
  for (uint64_t i = 0; i < StreamBuffer::kUnreturnedItems; ++i) {
    ASSERT_TRUE(buffer.has_room_unreturned());
    ASSERT_FALSE(buffer.has_room());
    buffer.push(1);
  }
  EXPECT_FALSE(buffer.has_room_unreturned());
  StreamBuffer large;
  large.push(StreamBuffer::kUnreturnedBytes);
  EXPECT_FALSE(large.has_room_unreturned());
}

TEST(StreamBuffer, UnsoundTakesAreRefused) {
  StreamBuffer buffer;
  const auto code = [&](uint64_t sequence, TakeLimits limits) {
    return buffer.add_take(sequence, limits).code();
  };
  EXPECT_EQ(code(0, {0, 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {1, 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(StreamBuffer::kMostTakes, kTwoItems), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(UINT64_MAX, kTwoItems), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, kTwoItems), absl::StatusCode::kOk);
  EXPECT_EQ(code(0, kTwoItems), absl::StatusCode::kInvalidArgument);
  buffer.push(1);
  ASSERT_TRUE(buffer.next_answer().has_value());
  EXPECT_EQ(code(0, kTwoItems), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(StreamBuffer::kMostTakes, kTwoItems), absl::StatusCode::kOk);
}

TEST(StreamBuffer, AbsurdLimitsAreBounded) {
  StreamBuffer buffer;
  for (uint64_t i = 0; i < StreamBuffer::kMostTakes; ++i)
    ASSERT_TRUE(buffer.add_take(i, {UINT64_MAX, UINT64_MAX}).ok());
  uint64_t items = 0;
  for (; buffer.has_room(); ++items) buffer.push(1);
  EXPECT_EQ(items, StreamBuffer::kMostTakes * StreamBuffer::kMostItems);
  EXPECT_EQ(buffer.next_answer()->items, StreamBuffer::kMostItems);
}

TEST(ReadWindow, WindowIsDividedIntoTakes) {
  ReadWindow window(2 * ReadWindow::kMostTakes, 200 * ReadWindow::kMostTakes);
  for (uint64_t i = 0; i < ReadWindow::kFirstTakes; ++i) {
    const auto take = window.next_take();
    ASSERT_TRUE(take.has_value());
    EXPECT_EQ(take->sequence, i);
    EXPECT_EQ(take->limits.items, 2u);
    EXPECT_EQ(take->limits.bytes, 200u);
  }
  EXPECT_FALSE(window.next_take().has_value());
  window.arrived(2, 20);
  for (uint64_t i = ReadWindow::kFirstTakes; i < ReadWindow::kMostTakes; ++i) {
    EXPECT_TRUE(window.next_take().has_value());
  }
  // The items wait to be read, so they are part of the window.
  EXPECT_FALSE(window.next_take().has_value());
  window.read(10);
  EXPECT_FALSE(window.next_take().has_value());
  window.read(10);
  EXPECT_TRUE(window.next_take().has_value());
}

TEST(ReadWindow, UnusedPartOfATakeIsAskedForAgain) {
  ReadWindow window(8, 800);
  while (window.next_take()) {
  }
  window.arrived(1, 1);
  window.read(1);
  EXPECT_TRUE(window.next_take().has_value());
}

TEST(ReadWindow, ItemsThatAreLargerThanATakeNeedMoreOfTheWindow) {
  ReadWindow window(1'000, 1'600);
  while (window.next_take()) {
  }
  // Three more takes are on their way, and each of them brings an item of 400 bytes, which fills the window.
  window.arrived(1, 400);
  window.read(400);
  EXPECT_TRUE(window.next_take().has_value());
  EXPECT_FALSE(window.next_take().has_value());
}

TEST(ReadWindow, SmallestWindowHasOneTake) {
  ReadWindow window(0, 0);
  ASSERT_TRUE(window.next_take().has_value());
  EXPECT_FALSE(window.next_take().has_value());
  // An item that is larger than the window.
  window.arrived(1, 1'000'000);
  EXPECT_FALSE(window.next_take().has_value());
  window.read(1'000'000);
  EXPECT_TRUE(window.next_take().has_value());
}

// Both state machines together, with answers and takes that are delayed at random: every item arrives once
// and in order, and the producer is never further ahead than the window and one item.
TEST(StreamWindow, RandomSchedulesKeepOrderAndWindow) {
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&random](uint64_t n) { return random() % n; };
    const uint64_t items = 1 + below(40);
    const uint64_t total = below(200);
    StreamBuffer buffer;
    ReadWindow window(items, 1 + below(400));
    std::vector<ReadWindow::Take> takes;             // Under way to the producer.
    std::vector<StreamBuffer::Answer> answers;       // Under way to the reader.
    std::map<uint64_t, StreamBuffer::Answer> early;  // Before their turn.
    uint64_t produced = 0, read = 0, unread = 0, expected = 0;
    bool ended = false;
    for (int step = 0; !(ended && unread == 0); ++step) {
      ASSERT_LT(step, 1'000'000) << "standstill after " << read << " of " << total;
      switch (below(5)) {
        case 0:
          if (const auto take = window.next_take()) takes.push_back(*take);
          break;
        case 1:
          if (takes.empty()) break;
          std::swap(takes[below(takes.size())], takes.back());
          ASSERT_TRUE(buffer.add_take(takes.back().sequence, takes.back().limits).ok());
          takes.pop_back();
          break;
        case 2:
          if (produced == total) {
            buffer.end();
          } else if (buffer.has_room()) {
            buffer.push(4);
            ++produced;
            ASSERT_LE(produced - read, items + 1);
          }
          break;
        case 3:
          if (const auto answer = buffer.next_answer()) answers.push_back(*answer);
          break;
        case 4:
          if (!answers.empty()) {
            std::swap(answers[below(answers.size())], answers.back());
            early.emplace(answers.back().sequence, answers.back());
            answers.pop_back();
          }
          for (auto first = early.begin(); first != early.end() && first->first == expected;
               first = early.erase(first)) {
            ++expected;
            window.arrived(first->second.items, 4 * first->second.items);
            unread += first->second.items;
            ended |= first->second.last;
          }
          if (unread > 0 && below(2) == 0) {
            window.read(4);
            --unread;
            ++read;
          }
          break;
      }
    }
    EXPECT_EQ(read, total);
  }
}

}  // namespace
}  // namespace gradwire::rpc
