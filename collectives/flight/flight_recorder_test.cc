#include "gradwire/collectives/flight/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/flight_record_signal.h"

namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

OperationRecord all_reduce_record() {
  OperationRecord record;
  record.operation = Operation::kAllReduce;
  record.reduction = 0;
  record.dtype = "Float";
  record.dimensions = 2;
  record.sizes[0] = 3;
  record.sizes[1] = 4;
  return record;
}

TEST(FlightRecorder, LineSaysWhatWasCalledAndHowItWent) {
  FlightRecorder recorder("group \"g\", rank 1 of 2");
  const CoarseTime now = coarse_now();
  const uint64_t first = recorder.begin(all_reduce_record(), 7, FlightRecorder::State::kQueued, now);
  EXPECT_THAT(recorder.text(), HasSubstr("group \"g\", rank 1 of 2, the last 1 operations:\n"));
  EXPECT_THAT(recorder.text(), HasSubstr("#7 all_reduce Float[3, 4] sum: queued"));
  recorder.set_state(first, FlightRecorder::State::kRunning, now + 1500);
  EXPECT_THAT(recorder.text(), HasSubstr(": running"));
  EXPECT_THAT(recorder.text(), HasSubstr("queued 1.500 s"));
  recorder.set_state(first, FlightRecorder::State::kDone, now + 1750);
  EXPECT_THAT(recorder.text(), HasSubstr(": done"));
  EXPECT_THAT(recorder.text(), HasSubstr("took 0.250 s"));

  OperationRecord send;
  send.operation = Operation::kSend;
  send.peer = 3;
  send.tag = 9;
  const uint64_t second =
      recorder.begin(send, FlightRecorder::kNoSequence, FlightRecorder::State::kRunning, coarse_now());
  recorder.set_state(second, FlightRecorder::State::kFailed, coarse_now(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(recorder.text(), HasSubstr("- send to 3 tag 9: failed (UNAVAILABLE)"));
}

TEST(FlightRecorder, OperationThatHasEndedIsRecordedAtOnce) {
  FlightRecorder recorder("group");
  const CoarseTime now = coarse_now();
  // The end of an older operation in the same slot is not taken for the end of this one.
  for (uint64_t i = 0; i < FlightRecorder::kCapacity; ++i) {
    recorder.set_state(recorder.begin(all_reduce_record(), i, FlightRecorder::State::kRunning, now),
                       FlightRecorder::State::kDone, now + 5000);
  }
  recorder.begin(all_reduce_record(), FlightRecorder::kCapacity, FlightRecorder::State::kDone, now + 7000);
  const std::string text = recorder.text();
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat("#", FlightRecorder::kCapacity, " all_reduce Float[3, 4] sum: done")));
  EXPECT_THAT(text, HasSubstr("took 0.000 s"));
}

TEST(FlightRecorder, OldRecordsAreOverwritten) {
  FlightRecorder recorder("group");
  const uint64_t first =
      recorder.begin(all_reduce_record(), 0, FlightRecorder::State::kRunning, coarse_now());
  for (uint64_t i = 1; i <= FlightRecorder::kCapacity; ++i) {
    recorder.begin(all_reduce_record(), i, FlightRecorder::State::kRunning, coarse_now());
  }
  // Too late: the slot now holds another record.
  recorder.set_state(first, FlightRecorder::State::kFailed, coarse_now(), absl::StatusCode::kAborted);
  const std::string text = recorder.text();
  EXPECT_THAT(text, Not(HasSubstr("#0 ")));
  EXPECT_THAT(text, HasSubstr("#1 "));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("#", FlightRecorder::kCapacity, " ")));
  EXPECT_THAT(text, Not(HasSubstr("failed")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), FlightRecorder::kCapacity + 1);
}

TEST(FlightRecorder, TextHasOnlyWholeRecordsWhileOthersWrite) {
  FlightRecorder recorder("group");
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < 4000; ++n) {
        const uint64_t number =
            recorder.begin(all_reduce_record(), n, FlightRecorder::State::kRunning, coarse_now());
        recorder.set_state(number, FlightRecorder::State::kDone, coarse_now() + 1750);
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    // Every line has the tensor's dtype and sizes: no record is half-written.
    const std::string text = recorder.text();
    EXPECT_EQ(text.find("all_reduce: "), std::string::npos);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_THAT(recorder.text(), HasSubstr("all_reduce Float[3, 4] sum: done"));
}

TEST(FlightRecorder, SignalHasAllRecordsWritten) {
  FlightRecorder recorder("group \"signalled\"");
  ASSERT_TRUE(install_flight_record_signal(SIGUSR2).ok());
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(raise(SIGUSR2), 0);
  const absl::Time deadline = Clock::system().now() + absl::Seconds(30);
  while (flight_records_written() == 0 && Clock::system().now() < deadline) std::this_thread::yield();
  EXPECT_EQ(flight_records_written(), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("group \"signalled\""));
  EXPECT_EQ(install_flight_record_signal(SIGKILL).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::collectives
