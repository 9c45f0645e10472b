#include "gradwire/rpc/flight/call_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gradwire::rpc {
namespace {

absl::Time at(int64_t nanoseconds) { return absl::UnixEpoch() + absl::Nanoseconds(nanoseconds); }

TEST(CallRecorder, RecordHasAllOfACall) {
  CallRecorder recorder(4);
  const uint64_t record = recorder.begin(CallEvent::Kind::kServed, 0xA, 7, CallParent::pass(0xB, 9),
                                         "demo::scale", at(1'000'000));
  CallEvent event;
  ASSERT_TRUE(recorder.read(record, event));
  EXPECT_EQ(event.kind, CallEvent::Kind::kServed);
  EXPECT_EQ(event.peer, 0xAu);
  EXPECT_EQ(event.number, 7u);
  EXPECT_EQ(event.parent, CallParent::pass(0xB, 9));
  EXPECT_EQ(event.name_view(), "demo::scale");
  EXPECT_FALSE(event.name_cut);
  EXPECT_EQ(event.began, 1'000'000);
  EXPECT_EQ(event.started, 0);
  EXPECT_FALSE(event.over());

  recorder.started(record, at(1'000'000));
  recorder.ended(record, at(1'250'000), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(recorder.read(record, event));
  EXPECT_EQ(event.started, 1'000'000);
  EXPECT_EQ(event.ended, 1'250'000);
  EXPECT_EQ(event.code, static_cast<uint8_t>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(event.over());
}

TEST(CallRecorder, LongNameKeepsItsEnd) {
  CallRecorder recorder(1);
  const std::string name = std::string(100, 'n') + "::the_function_that_is_called";
  CallEvent event;
  ASSERT_TRUE(recorder.read(recorder.begin(CallEvent::Kind::kMade, 1, 1, {}, name, at(1)), event));
  EXPECT_EQ(event.name_view(), name.substr(name.size() - CallEvent::kMaxName));
  EXPECT_TRUE(event.name_cut);
  ASSERT_TRUE(recorder.read(recorder.begin(CallEvent::Kind::kMade, 1, 1, {}, "", at(1)), event));
  EXPECT_EQ(event.name_view(), "");
}

TEST(CallRecorder, OverflowDropsTheOldest) {
  CallRecorder recorder(4);
  const uint64_t first = recorder.begin(CallEvent::Kind::kMade, 1, 0, {}, "first", at(0));
  for (uint64_t i = 1; i <= 4; ++i) recorder.begin(CallEvent::Kind::kMade, 1, i, {}, "next", at(0));
  // Its slot holds another call, which has not ended.
  recorder.ended(first, at(5), absl::StatusCode::kOk);
  EXPECT_EQ(recorder.first(), 1u);
  EXPECT_EQ(recorder.next(), 5u);
  CallEvent event;
  EXPECT_FALSE(recorder.read(first, event));
  ASSERT_TRUE(recorder.read(4, event));
  EXPECT_EQ(event.number, 4u);
  EXPECT_FALSE(event.over());
}

TEST(CallRecorder, OffRecordsNothing) {
  CallRecorder recorder(0);
  const uint64_t record = recorder.begin(CallEvent::Kind::kMade, 1, 1, {}, "call", at(0));
  EXPECT_EQ(record, CallRecorder::kNone);
  recorder.started(record, at(1));
  recorder.ended(record, at(2), absl::StatusCode::kOk);
  EXPECT_EQ(recorder.next(), 0u);
  CallEvent event;
  EXPECT_FALSE(recorder.read(0, event));
}

TEST(CallRecorder, EndOfACallThatWasNotRecordedChangesNothing) {
  CallRecorder recorder(1);
  const uint64_t record = recorder.begin(CallEvent::Kind::kMade, 1, 1, {}, "call", at(0));
  recorder.ended(CallRecorder::kNone, at(2), absl::StatusCode::kOk);
  CallEvent event;
  ASSERT_TRUE(recorder.read(record, event));
  EXPECT_FALSE(event.over());
}

TEST(CallRecorder, ThreadsRecordAndReadAtTheSameTime) {
  CallRecorder recorder(64);
  std::vector<std::thread> writers;
  for (uint64_t writer = 1; writer <= 3; ++writer) {
    writers.emplace_back([&recorder, writer] {
      const std::string name(20, static_cast<char>('a' + writer));
      for (uint64_t i = 0; i < 5'000; ++i) {
        const uint64_t record =
            recorder.begin(CallEvent::Kind::kMade, writer, i, CallParent::call({writer, i}), name, at(100));
        recorder.started(record, at(101));
        recorder.ended(record, at(102), absl::StatusCode::kOk);
      }
    });
  }
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    do {
      const uint64_t next = recorder.next();
      for (uint64_t record = recorder.first(); record < next; ++record) {
        CallEvent event;
        if (!recorder.read(record, event)) continue;
        // No record is a mixture of those of two threads.
        ASSERT_EQ(event.parent, CallParent::call({event.peer, event.number}));
        ASSERT_EQ(event.name_view(), std::string(20, static_cast<char>('a' + event.peer)));
      }
    } while (!stop.load());
  });
  for (std::thread& writer : writers) writer.join();
  stop = true;
  reader.join();
  EXPECT_EQ(recorder.next(), 15'000u);
}

}  // namespace
}  // namespace gradwire::rpc
