#include "gradwire/tests/device/core/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/tests/device/core/accelerator.h"
#include "gradwire/tests/device/core/event.h"

namespace gradwire::lag {
namespace {

// Small, so that the sanitizers have little to map.
Options options() {
  return {.devices = 2,
          .pool_streams = 3,
          .memory = 64 << 20,
          .capacity = 64 << 20,
          .max_host_wait = absl::Seconds(20)};
}

TEST(Stream, RunsKernelsInOrder) {
  Accelerator accelerator(options());
  Stream& stream = accelerator.default_stream(0);
  std::vector<int> order;
  for (int i = 0; i < 200; i++) {
    ASSERT_TRUE(stream.launch([&order, i] { order.push_back(i); }).ok());
  }
  ASSERT_TRUE(stream.synchronize().ok());
  ASSERT_EQ(order.size(), 200);
  for (int i = 0; i < 200; i++) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Stream, LaunchReturnsBeforeTheKernelRuns) {
  Accelerator accelerator(options());
  Stream& stream = accelerator.default_stream(0);
  stream.hold();
  std::atomic<bool> ran = false;
  ASSERT_TRUE(stream.launch([&ran] { ran = true; }).ok());
  EXPECT_FALSE(*stream.query());
  EXPECT_FALSE(ran);
  stream.release();
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_TRUE(ran);
  EXPECT_TRUE(*stream.query());
}

TEST(Stream, OtherStreamsRunWhileOneIsHeld) {
  Accelerator accelerator(options());
  Stream& held = accelerator.default_stream(0);
  Stream& other = accelerator.pool_stream(0);
  held.hold();
  std::atomic<bool> ran = false;
  ASSERT_TRUE(other.launch([&ran] { ran = true; }).ok());
  ASSERT_TRUE(other.synchronize().ok());
  EXPECT_TRUE(ran);
  EXPECT_FALSE(*held.query());
  held.release();
}

TEST(Stream, PoolRepeatsItsStreamsAndKeepsPrioritiesApart) {
  Accelerator accelerator(options());
  Stream& first = accelerator.pool_stream(1);
  EXPECT_NE(first.id(), 0);
  EXPECT_EQ(first.device(), 1);
  EXPECT_NE(&accelerator.pool_stream(1), &first);
  EXPECT_NE(&accelerator.pool_stream(1), &first);
  EXPECT_EQ(&accelerator.pool_stream(1), &first);
  EXPECT_GT(accelerator.pool_stream(1, /*high_priority=*/true).id(), 3);
  EXPECT_EQ(accelerator.stream(1, first.id()), &first);
  EXPECT_EQ(accelerator.stream(1, 99), nullptr);
  EXPECT_EQ(accelerator.stream(2, 0), nullptr);
}

TEST(Stream, WaitsForAnotherStream) {
  Accelerator accelerator(options());
  Stream& producer = accelerator.default_stream(0);
  Stream& consumer = accelerator.default_stream(1);
  int value = 0;
  int seen = 0;
  producer.hold();
  ASSERT_TRUE(producer.launch([&value] { value = 7; }).ok());
  ASSERT_TRUE(consumer.wait(producer.end()).ok());
  ASSERT_TRUE(consumer.launch([&value, &seen] { seen = value; }).ok());
  EXPECT_FALSE(*consumer.query());
  producer.release();
  ASSERT_TRUE(consumer.synchronize().ok());
  EXPECT_EQ(seen, 7);
}

TEST(Stream, ProfilesDrawDifferentDelays) {
  Delays one(Profile::seeded(1), 0);
  Delays again(Profile::seeded(1), 0);
  Delays other_stream(Profile::seeded(1), 1);
  Delays none(Profile::none(), 0);
  absl::Duration longest = absl::ZeroDuration();
  int different = 0;
  int late = 0;
  for (int i = 0; i < 10000; i++) {
    const absl::Duration delay = one.next();
    EXPECT_EQ(again.next(), delay);
    different += other_stream.next() != delay ? 1 : 0;
    late += delay > absl::ZeroDuration() ? 1 : 0;
    longest = std::max(longest, delay);
    EXPECT_EQ(none.next(), absl::ZeroDuration());
  }
  EXPECT_GT(different, 5000);
  EXPECT_GT(late, 4000);
  EXPECT_LT(late, 6000);
  EXPECT_GT(longest, absl::Milliseconds(2));
  EXPECT_LE(longest, absl::Milliseconds(3));
}

TEST(Event, NeverRecordedCountsAsPassed) {
  Accelerator accelerator(options());
  Event event(accelerator.shared(), 0, /*timed=*/false);
  EXPECT_TRUE(*event.query());
  Stream& stream = accelerator.default_stream(0);
  ASSERT_TRUE(event.block(stream).ok());
  EXPECT_TRUE(*stream.query());
  EXPECT_TRUE(event.synchronize().ok());
}

TEST(Event, RecordingAgainDoesNotChangeEarlierWaits) {
  Accelerator accelerator(options());
  Stream& producer = accelerator.default_stream(0);
  Stream& consumer = accelerator.pool_stream(0);
  Event event(accelerator.shared(), 0, /*timed=*/false);
  ASSERT_TRUE(producer.launch([] {}).ok());
  ASSERT_TRUE(event.record(producer).ok());
  ASSERT_TRUE(event.block(consumer).ok());
  // The second record is never passed while the producer is held, and the consumer does not wait for it.
  producer.hold();
  ASSERT_TRUE(event.record(producer).ok());
  EXPECT_TRUE(consumer.synchronize().ok());
  EXPECT_FALSE(*event.query());
  producer.release();
  EXPECT_TRUE(event.synchronize().ok());
  EXPECT_TRUE(*event.query());
}

TEST(Event, MayBeDestroyedWhileAStreamWaits) {
  Accelerator accelerator(options());
  Stream& producer = accelerator.default_stream(0);
  Stream& consumer = accelerator.pool_stream(0);
  std::atomic<bool> produced = false;
  bool seen = false;
  producer.hold();
  ASSERT_TRUE(producer.launch([&produced] { produced = true; }).ok());
  {
    Event event(accelerator.shared(), 0, /*timed=*/false);
    ASSERT_TRUE(event.record(producer).ok());
    ASSERT_TRUE(event.block(consumer).ok());
    EXPECT_EQ(accelerator.counts().events, 1);
  }
  EXPECT_EQ(accelerator.counts().events, 0);
  ASSERT_TRUE(consumer.launch([&produced, &seen] { seen = produced; }).ok());
  producer.release();
  ASSERT_TRUE(consumer.synchronize().ok());
  EXPECT_TRUE(seen);
}

TEST(Event, RefusesAStreamOfAnotherDevice) {
  Accelerator accelerator(options());
  Event event(accelerator.shared(), 0, /*timed=*/false);
  EXPECT_EQ(event.record(accelerator.default_stream(1)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Event, MeasuresTimeOnlyIfTimed) {
  Accelerator accelerator(options());
  Stream& stream = accelerator.default_stream(0);
  Event start(accelerator.shared(), 0, /*timed=*/true);
  Event end(accelerator.shared(), 0, /*timed=*/true);
  Event untimed(accelerator.shared(), 0, /*timed=*/false);
  ASSERT_TRUE(start.record(stream).ok());
  ASSERT_TRUE(stream.launch([] { absl::SleepFor(absl::Milliseconds(2)); }).ok());
  ASSERT_TRUE(end.record(stream).ok());
  ASSERT_TRUE(untimed.record(stream).ok());
  ASSERT_TRUE(untimed.synchronize().ok());
  EXPECT_GE(*start.elapsed(end), absl::Milliseconds(2));
  EXPECT_EQ(start.elapsed(untimed).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HostWait, IsCountedWithItsThreadAndCall) {
  Accelerator accelerator(options());
  Stream& stream = accelerator.default_stream(1);
  EXPECT_EQ(accelerator.counts().host_waits, 0);
  stream.hold();
  std::thread waiting([&stream] {
    pthread_setname_np(pthread_self(), "waiter");
    EXPECT_TRUE(stream.synchronize().ok());
  });
  EXPECT_TRUE(eventually([&accelerator] { return accelerator.counts().host_blocked == 1; }));
  stream.release();
  waiting.join();
  ASSERT_TRUE(accelerator.synchronize(1).ok());
  const std::vector<HostWait> waits = accelerator.shared().host_waits();
  ASSERT_EQ(waits.size(), 2);
  EXPECT_EQ(waits[0].thread, "waiter");
  EXPECT_EQ(waits[0].call, "stream.synchronize");
  EXPECT_EQ(waits[0].device, 1);
  EXPECT_TRUE(waits[0].blocked);
  EXPECT_EQ(waits[1].call, "device.synchronize");
  EXPECT_FALSE(waits[1].blocked);
  EXPECT_EQ(accelerator.counts().host_waits, 2);
  EXPECT_EQ(accelerator.counts().host_blocked, 1);
}

TEST(HostWait, EndsWithAnErrorAfterItsLimit) {
  Options limited = options();
  limited.max_host_wait = absl::Milliseconds(20);
  Accelerator accelerator(limited);
  Stream& stream = accelerator.default_stream(0);
  stream.hold();
  EXPECT_EQ(stream.synchronize().code(), absl::StatusCode::kDeadlineExceeded);
  stream.release();
}

TEST(Loss, FailsEveryCallUntilRestored) {
  Accelerator accelerator(options());
  Stream& stream = accelerator.default_stream(0);
  Event event(accelerator.shared(), 0, /*timed=*/false);
  ASSERT_TRUE(event.record(stream).ok());
  accelerator.shared().lose(0, "it caught fire");
  for (const absl::Status& status :
       {stream.launch([] {}), stream.query().status(), stream.synchronize(), stream.wait({}),
        event.record(stream), event.query().status(), event.synchronize(), event.block(stream),
        accelerator.synchronize(0), accelerator.memory(0).allocate(8, stream).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("lag:0 is lost: it caught fire"), std::string::npos) << status;
  }
  EXPECT_TRUE(accelerator.default_stream(1).launch([] {}).ok());
  accelerator.shared().restore(0);
  bool ran = false;
  EXPECT_TRUE(stream.launch([&ran] { ran = true; }).ok());
  EXPECT_TRUE(stream.synchronize().ok());
  EXPECT_TRUE(ran);
}

TEST(Loss, EndsWaitsAndDropsKernels) {
  Accelerator accelerator(options());
  Stream& lost = accelerator.default_stream(0);
  Stream& other = accelerator.default_stream(1);
  std::atomic<bool> ran = false;
  lost.hold();
  ASSERT_TRUE(lost.launch([&ran] { ran = true; }).ok());
  ASSERT_TRUE(other.wait(lost.end()).ok());
  std::thread waiting([&lost] { EXPECT_EQ(lost.synchronize().code(), absl::StatusCode::kUnavailable); });
  EXPECT_TRUE(eventually([&accelerator] { return accelerator.counts().host_blocked == 1; }));
  accelerator.shared().lose(0, "test");
  waiting.join();
  // A stream of another device does not wait for a lost one.
  EXPECT_TRUE(other.synchronize().ok());
  EXPECT_FALSE(ran);
  accelerator.shared().restore(0);
  lost.release();
  EXPECT_TRUE(lost.synchronize().ok());
  EXPECT_FALSE(ran);
}

TEST(Loss, FollowsFromAKernelThatThrows) {
  Accelerator accelerator(options());
  Stream& stream = accelerator.default_stream(0);
  ASSERT_TRUE(stream.launch([] { throw std::runtime_error("index out of range"); }).ok());
  const absl::Status status = stream.synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("index out of range"), std::string::npos) << status;
}

TEST(Accelerator, StopsWithHeldStreamsAndPendingKernels) {
  const auto owned = std::make_shared<int>(0);
  std::atomic<bool> ran = false;
  {
    Accelerator accelerator(options());
    Stream& stream = accelerator.default_stream(0);
    stream.hold();
    ASSERT_TRUE(stream.launch([&ran, owned] { ran = true; }).ok());
    ASSERT_TRUE(accelerator.pool_stream(0).wait(stream.end()).ok());
    accelerator.stop();
    accelerator.stop();
    EXPECT_EQ(owned.use_count(), 1);
    ASSERT_TRUE(stream.launch([&ran, owned] { ran = true; }).ok());
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(Accelerator, ReportsLeftovers) {
  Accelerator accelerator(options());
  Stream& stream = accelerator.default_stream(0);
  EXPECT_EQ(accelerator.leftovers(), "");
  Block* block = *accelerator.memory(0).allocate(100, stream);
  void* pinned = accelerator.host_memory().allocate(100);
  auto event = std::make_unique<Event>(accelerator.shared(), 0, /*timed=*/false);
  stream.hold();
  EXPECT_EQ(
      accelerator.leftovers(absl::ZeroDuration()),
      "1 blocks of device memory (100 bytes), 1 blocks of pinned memory, 1 events, 1 streams that have not "
      "finished");
  stream.release();
  accelerator.memory(0).free(block);
  accelerator.host_memory().free(pinned);
  event.reset();
  EXPECT_EQ(accelerator.leftovers(), "");
}

// Many threads use a few streams. Each kernel of a stream may run only after its predecessor.
TEST(Stream, KeepsItsOrderUnderLoad) {
  Accelerator accelerator(options());
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  std::vector<int> counters(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&accelerator, &counters, t] {
      int& counter = counters[static_cast<size_t>(t)];
      Stream* last = &accelerator.default_stream(0);
      for (int i = 0; i < kRounds; i++) {
        Stream& next = accelerator.pool_stream(i % 2);
        ASSERT_TRUE(next.wait(last->end()).ok());
        ASSERT_TRUE(next.launch([&counter, i] {
                          if (counter == i) counter++;
                        })
                        .ok());
        last = &next;
      }
      ASSERT_TRUE(last->synchronize().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int counter : counters) EXPECT_EQ(counter, kRounds);
}

}  // namespace
}  // namespace gradwire::lag
