#include "gradwire/transport/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/log/line_output.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/full_pipe.h"
#include "gradwire/transport/loop_thread.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

std::shared_ptr<EventLoop> make_loop() { return *EventLoop::create(); }

TEST(EventLoop, OneThreadDrivesAtATime) {
  auto loop = make_loop();
  ASSERT_TRUE(loop->try_enter());
  EXPECT_FALSE(loop->try_enter());
  loop->leave();
  EXPECT_TRUE(loop->try_enter());
  loop->pause(false);
  EXPECT_TRUE(loop->try_enter());
  loop->leave();
  end(*loop);
}

TEST(EventLoop, DriverIsNamedWithWhatItDoes) {
  auto loop = make_loop();
  EXPECT_EQ(loop->driver().thread, 0);
  std::string posted, noted, timer;
  loop->post([&] { posted = loop->driver().doing; });
  loop->post([&] {
    note_duty("a message of this test");
    noted = loop->driver().doing;
  });
  ASSERT_TRUE(loop->try_enter());
  loop->schedule_in_loop(absl::InfinitePast(), [&] { timer = loop->driver().doing; });
  loop->poll();
  EXPECT_EQ(loop->driver().thread, ::gettid());
  EXPECT_EQ(posted, "a task that another thread has posted");
  EXPECT_EQ(noted, "a message of this test");
  EXPECT_EQ(timer, "a timer");
  loop->leave();
  EXPECT_EQ(loop->driver().thread, 0);
  // Its notes are its own.
  note_duty("nothing of the loop");
  ASSERT_TRUE(loop->try_enter());
  EXPECT_STREQ(loop->driver().doing, "a timer");
  loop->leave();
  end(*loop);
}

TEST(EventLoop, DriverMustNotDriveUntilSomethingHappens) {
  auto loop = make_loop();
  ASSERT_TRUE(loop->try_enter());
  EXPECT_DEBUG_DEATH(loop->run_until([] { return true; }), "on_duty");
  loop->leave();
  end(*loop);
}

TEST(EventLoop, PostedTasksRunInOrderOnTheDriver) {
  auto loop = make_loop();
  std::vector<int> ran;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(loop->post([&ran, i] { ran.push_back(i); }));
  }
  EXPECT_TRUE(ran.empty());
  ASSERT_TRUE(loop->try_enter());
  EXPECT_NE(loop->poll(), Poller::kNothing);
  EXPECT_EQ(loop->poll(), Poller::kNothing);
  loop->leave();
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
  end(*loop);
  EXPECT_FALSE(loop->post([] {}));
}

TEST(EventLoop, PostWakesTheSleeper) {
  auto loop = make_loop();
  LoopThread thread;
  ASSERT_TRUE(thread.start(loop, WaitPolicy{absl::ZeroDuration(), absl::ZeroDuration()}).ok());
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> ran{false};
    loop->post([&ran] { ran = true; });
    while (!ran) std::this_thread::yield();
  }
  loop->post([&loop] { loop->end_in_loop(); });
  thread.join();
}

TEST(EventLoop, TimersRunInTheOrderOfTheirTimes) {
  auto loop = make_loop();
  std::vector<int> ran;
  const absl::Time now = Clock::system().now();
  loop->post([&] {
    loop->schedule_in_loop(now + absl::Milliseconds(4), [&] { ran.push_back(2); });
    const uint64_t cancelled = loop->schedule_in_loop(now + absl::Milliseconds(3), [&] { ran.push_back(9); });
    loop->schedule_in_loop(now + absl::Milliseconds(2), [&] { ran.push_back(1); });
    EXPECT_EQ(loop->schedule_in_loop(absl::InfiniteFuture(), [&] { ran.push_back(9); }), 0u);
    loop->cancel_in_loop(cancelled);
  });
  loop->run_until([&] { return ran.size() == 2; });
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  end(*loop);
}

TEST(EventLoop, TimerWakesTheSleeper) {
  auto loop = make_loop();
  LoopThread thread;
  ASSERT_TRUE(thread.start(loop, WaitPolicy{absl::ZeroDuration(), absl::ZeroDuration()}).ok());
  std::atomic<bool> ran{false};
  loop->post(
      [&] { loop->schedule_in_loop(Clock::system().now() + absl::Milliseconds(5), [&ran] { ran = true; }); });
  while (!ran) std::this_thread::yield();
  loop->post([&loop] { loop->end_in_loop(); });
  thread.join();
}

class CountingHandler : public EventHandler {
 public:
  void on_events_in_loop(uint32_t) override { ++count; }
  void failed_in_loop(const absl::Status& error) override { ADD_FAILURE() << error; }
  std::atomic<int> count{0};
};

TEST(EventLoop, DescriptorWakesTheSleeperAndIsForgottenWhenRemoved) {
  auto loop = make_loop();
  LoopThread thread;
  ASSERT_TRUE(thread.start(loop, WaitPolicy{absl::ZeroDuration(), absl::ZeroDuration()}).ok());
  Descriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  auto handler = std::make_shared<CountingHandler>();
  uint64_t id = 0;
  std::atomic<bool> added{false};
  loop->post([&] {
    id = *loop->add_in_loop(event.get(), handler);
    added = true;
  });
  while (!added) std::this_thread::yield();
  for (int i = 0; i < 50; ++i) {
    const int before = handler->count;
    const uint64_t one = 1;
    ASSERT_EQ(::write(event.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    while (handler->count == before) std::this_thread::yield();
  }
  loop->post([&] {
    loop->remove_in_loop(event.get(), id);
    loop->end_in_loop();
  });
  thread.join();
  EXPECT_EQ(handler.use_count(), 1);
}

// Polled memory whose writer is the test itself instead of another process.
class Mailbox : public Pollable {
 public:
  bool poll_in_loop() override {
    taken += pending.exchange(0);
    return true;
  }
  void failed_in_loop(const absl::Status& error) override { ADD_FAILURE() << error; }
  void arm_in_loop() override { armed = true; }
  void disarm_in_loop() override { armed = false; }
  bool has_data_in_loop() override {
    ++checks;
    return pending > 0;
  }

  int checks = 0;
  std::atomic<int> pending{0};
  std::atomic<bool> armed{true};
  std::atomic<int> taken{0};
};

// Memory that always has data, so that descriptors are polled in few rounds.
class AlwaysFull : public Pollable {
 public:
  bool has_data_in_loop() override { return true; }
  bool poll_in_loop() override { return true; }
  void failed_in_loop(const absl::Status& error) override { ADD_FAILURE() << error; }
  void arm_in_loop() override {}
  void disarm_in_loop() override {}
};

TEST(EventLoop, PolledMemoryIsPolledAndDisarmed) {
  auto loop = make_loop();
  auto box = std::make_shared<Mailbox>();
  loop->activate(box);
  ASSERT_TRUE(loop->try_enter());
  loop->poll();
  EXPECT_FALSE(box->armed);
  box->pending = 3;
  EXPECT_NE(loop->poll(), Poller::kNothing);
  EXPECT_EQ(box->taken, 3);
  loop->leave();
  EXPECT_TRUE(box->armed);
  ASSERT_TRUE(loop->try_enter());
  EXPECT_FALSE(box->armed);
  loop->forget_in_loop(*box);
  loop->leave();
  EXPECT_EQ(box.use_count(), 1);
  end(*loop);
}

TEST(EventLoop, DataThatArrivesBetweenTheLastPollAndTheArmingIsTaken) {
  auto loop = make_loop();
  auto box = std::make_shared<Mailbox>();
  loop->activate(box);
  ASSERT_TRUE(loop->try_enter());
  loop->poll();
  box->pending = 1;
  loop->leave();
  EXPECT_EQ(box->taken, 1);
  EXPECT_TRUE(box->armed);
  end(*loop);
}

TEST(EventLoop, IdleMemoryIsDeactivatedAndStaysArmed) {
  auto loop = make_loop();
  std::vector<std::shared_ptr<Mailbox>> boxes;
  for (int i = 0; i < 6; ++i) boxes.push_back(std::make_shared<Mailbox>());
  for (const auto& box : boxes) loop->activate(box);
  ASSERT_TRUE(loop->try_enter());
  for (int i = 0; i < 1000; ++i) loop->poll();
  loop->leave();
  // A few stay active.
  EXPECT_EQ(std::count_if(boxes.begin(), boxes.end(), [](const auto& box) { return box.use_count() == 1; }),
            2);
  Mailbox& idle =
      **std::find_if(boxes.begin(), boxes.end(), [](const auto& box) { return box.use_count() == 1; });
  ASSERT_TRUE(loop->try_enter());
  EXPECT_EQ(std::count_if(boxes.begin(), boxes.end(), [](const auto& box) { return box->armed.load(); }), 2);
  EXPECT_TRUE(idle.armed);
  loop->leave();
  for (const auto& box : boxes) loop->activate(box);
  ASSERT_TRUE(loop->try_enter());
  loop->poll();
  EXPECT_FALSE(idle.armed);
  loop->leave();
  end(*loop);
}

TEST(EventLoop, MemoryWithDataStaysActive) {
  auto loop = make_loop();
  std::vector<std::shared_ptr<Mailbox>> boxes;
  for (int i = 0; i < 6; ++i) boxes.push_back(std::make_shared<Mailbox>());
  for (const auto& box : boxes) loop->activate(box);
  ASSERT_TRUE(loop->try_enter());
  for (int i = 0; i < 1000; ++i) {
    boxes[0]->pending = 1;
    loop->poll();
  }
  loop->leave();
  EXPECT_EQ(boxes[0].use_count(), 2);
  end(*loop);
}

TEST(EventLoop, DriverThatNeverLeavesStopsPollingIdleMemory) {
  auto loop = make_loop();
  std::vector<std::shared_ptr<Mailbox>> boxes;
  for (int i = 0; i < 100; ++i) boxes.push_back(std::make_shared<Mailbox>());
  for (const auto& box : boxes) loop->activate(box);
  ASSERT_TRUE(loop->try_enter());
  const auto poll = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      boxes[0]->pending = 1;
      loop->poll();
      loop->pause(/*several=*/false);
      ASSERT_TRUE(loop->try_enter());
    }
  };
  poll(5'000);
  for (const auto& box : boxes) box->checks = 0;
  poll(1'000);
  // The busy one, and a few others.
  EXPECT_LE(std::count_if(boxes.begin(), boxes.end(), [](const auto& box) { return box->checks > 0; }), 5);
  EXPECT_EQ(boxes[0]->taken, 6'000);
  for (const auto& box : boxes) EXPECT_EQ(box->armed.load(), box->checks == 0) << "polled and armed";
  // The doorbell.
  boxes[50]->pending = 1;
  loop->activate(boxes[50]);
  poll(1);
  EXPECT_EQ(boxes[50]->taken, 1);
  loop->leave();
  end(*loop);
}

// Its writer writes just before the memory is armed, and does not ring.
class LateMailbox : public Mailbox {
 public:
  explicit LateMailbox(int arms) : arms_(arms) {}
  void arm_in_loop() override {
    if (--arms_ == 0) pending = 1;
    Mailbox::arm_in_loop();
  }

 private:
  int arms_;
};

TEST(EventLoop, IdleMemoryWithDataThatDidNotRingStaysActive) {
  // The data arrives when the memory is retired, and in one of the rounds in which the driver leaves.
  for (const int arms : {1, 2, 3, 4, 5}) {
    for (const bool stays_driver : {true, false}) {
      auto loop = make_loop();
      auto late = std::make_shared<LateMailbox>(arms);
      loop->activate(late);
      std::vector<std::shared_ptr<Mailbox>> boxes;
      for (int i = 0; i < 6; ++i) boxes.push_back(std::make_shared<Mailbox>());
      for (const auto& box : boxes) loop->activate(box);
      // Lets the driver poll again in each round of leaving.
      auto full = std::make_shared<AlwaysFull>();
      loop->activate(full);
      ASSERT_TRUE(loop->try_enter());
      for (int i = 0; i < (stays_driver ? 5'000 : 1'000); ++i) loop->poll();
      for (int i = 0; i < 3 && !stays_driver; ++i) {
        loop->leave();
        ASSERT_TRUE(loop->try_enter());
        loop->poll();
      }
      const bool arrived = stays_driver ? arms == 1 : true;
      EXPECT_EQ(late->taken, arrived ? 1 : 0) << arms;
      // Memory that is polled need not ring.
      if (arrived) EXPECT_FALSE(late->armed) << arms;
      loop->forget_in_loop(*full);
      loop->leave();
      end(*loop);
    }
  }
}

TEST(EventLoop, PollIdentifiesWhereDataArrived) {
  auto loop = make_loop();
  auto first = std::make_shared<Mailbox>();
  auto second = std::make_shared<Mailbox>();
  loop->activate(first);
  loop->activate(second);
  ASSERT_TRUE(loop->try_enter());
  loop->poll();
  const auto found_at = [&](Mailbox& box) {
    box.pending = 1;
    return loop->poll();
  };
  const Poller::Found at_first = found_at(*first);
  EXPECT_GT(at_first, Poller::kWork);
  EXPECT_EQ(found_at(*first), at_first);
  EXPECT_GT(found_at(*second), Poller::kWork);
  EXPECT_NE(found_at(*second), at_first);
  loop->post([] {});
  EXPECT_EQ(loop->poll(), Poller::kWork);
  loop->leave();
  end(*loop);
}

[[noreturn]] void fail() { throw std::runtime_error("the step fails"); }

// Throws whenever its descriptor has an event, or its memory has data.
class Failing : public EventHandler, public Pollable {
 public:
  void on_events_in_loop(uint32_t) override { fail(); }
  bool poll_in_loop() override {
    has_data = false;
    fail();
  }
  void failed_in_loop(const absl::Status& error) override {
    EXPECT_NE(error.message().find("the step fails"), absl::string_view::npos) << error;
    ++failures;
  }
  void arm_in_loop() override {}
  void disarm_in_loop() override {}
  bool has_data_in_loop() override { return has_data; }

  bool has_data = true;
  int failures = 0;
};

TEST(EventLoop, TimerThatThrowsRunsAgain) {
  auto loop = make_loop();
  ASSERT_TRUE(loop->try_enter());
  int runs = 0;
  loop->schedule_in_loop(absl::InfinitePast(), [&] {
    if (++runs < 3) fail();
  });
  EXPECT_TRUE(eventually([&] {
    loop->poll();
    return runs == 3;
  }));
  loop->leave();
  end(*loop);
}

TEST(EventLoop, ExceptionConcernsOnlyTheStepThatThrows) {
  auto loop = make_loop();
  ASSERT_TRUE(loop->try_enter());
  int good = 0;
  const auto count = [&good] { ++good; };
  // For each kind one step that throws, and one behind it.
  loop->post([] { fail(); });
  loop->post(count);
  loop->post_after_reading([] { fail(); });
  loop->post_after_reading(count);
  loop->turns_in_loop().defer([] { fail(); });
  loop->turns_in_loop().defer(count);
  loop->schedule_in_loop(absl::InfinitePast(), [] { fail(); });
  loop->schedule_in_loop(absl::InfinitePast(), count);
  const auto failing = std::make_shared<Failing>();
  loop->activate(failing);
  const auto box = std::make_shared<Mailbox>();
  box->pending = 1;
  loop->activate(box);
  const Descriptor bad_event(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  const Descriptor good_event(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
  const auto counter = std::make_shared<CountingHandler>();
  ASSERT_TRUE(loop->add_in_loop(bad_event.get(), failing).ok());
  ASSERT_TRUE(loop->add_in_loop(good_event.get(), counter).ok());
  for (int round = 0; round < 10; ++round) loop->poll();
  EXPECT_EQ(good, 4);
  EXPECT_EQ(failing->failures, 2);  // of its memory and of its descriptor
  EXPECT_EQ(box->taken, 1);
  EXPECT_EQ(counter->count, 1);
  loop->leave();
  EXPECT_TRUE(loop->try_enter());
  loop->forget_in_loop(*failing);
  loop->forget_in_loop(*box);
  loop->leave();
  end(*loop);
}

// Counts its events.
class EventCounter : public EventHandler {
 public:
  void on_events_in_loop(uint32_t) override { ++events; }
  void failed_in_loop(const absl::Status& error) override { ADD_FAILURE() << error; }
  int events = 0;
};

TEST(EventLoop, TaskAfterReadingComesAfterEverythingThatHadArrived) {
  auto loop = make_loop();
  ASSERT_TRUE(loop->try_enter());
  loop->activate(std::make_shared<AlwaysFull>());
  // More descriptors than one poll returns.
  constexpr int kDescriptors = 100;
  std::vector<Descriptor> descriptors;
  std::vector<std::shared_ptr<EventCounter>> counters;
  for (int i = 0; i < kDescriptors; ++i) {
    descriptors.emplace_back(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    counters.push_back(std::make_shared<EventCounter>());
    ASSERT_TRUE(loop->add_in_loop(descriptors.back().get(), counters.back(), /*both_ways=*/false).ok());
  }
  const auto read = [&] {
    return std::count_if(counters.begin(), counters.end(), [](const auto& each) { return each->events > 0; });
  };
  // No descriptor is expected to have events any more.
  for (int i = 0; i < 2000; ++i) loop->poll();
  for (const Descriptor& each : descriptors) ASSERT_EQ(eventfd_write(each.get(), 1), 0);
  long seen = -1;
  EXPECT_TRUE(loop->post_after_reading([&] { seen = read(); }));
  for (int i = 0; i < 4 && seen < 0; ++i) loop->poll();
  EXPECT_EQ(seen, kDescriptors);
  counters.clear();
  for (Descriptor& each : descriptors) each.reset();
  loop->leave();
  end(*loop);
  EXPECT_FALSE(loop->post_after_reading([] {}));
}

TEST(EventLoop, TaskAfterReadingWakesTheSleeper) {
  auto loop = make_loop();
  LoopThread thread;
  ASSERT_TRUE(thread.start(loop, WaitPolicy{absl::ZeroDuration(), absl::ZeroDuration()}).ok());
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> ran{false};
    loop->post_after_reading([&ran] { ran = true; });
    while (!ran) std::this_thread::yield();
  }
  loop->post([&loop] { loop->end_in_loop(); });
  thread.join();
}

TEST(EventLoop, LogLinesWaitForNobodyWhoReadsStandardError) {
  FullPipe pipe;
  const Descriptor error(dup(STDERR_FILENO));
  ASSERT_GE(dup2(pipe.in(), STDERR_FILENO), 0);

  auto loop = make_loop();
  LoopThread thread;
  ASSERT_TRUE(thread.start(loop, WaitPolicy{absl::ZeroDuration(), absl::ZeroDuration()}).ok());
  std::atomic<bool> went_on{false};
  loop->post([] { log(LogLevel::kError, "a line of the loop"); });
  loop->post([&] { went_on = true; });
  while (!went_on) std::this_thread::yield();
  loop->post([&loop] { loop->end_in_loop(); });
  thread.join();

  pipe.drain();
  LineOutput::standard_error().flush(absl::Seconds(60));
  ASSERT_GE(dup2(error.get(), STDERR_FILENO), 0);
  EXPECT_NE(pipe.rest().find("a line of the loop"), std::string::npos);
}

TEST(EventLoop, SleepEndsAfterTheGivenTime) {
  auto loop = make_loop();
  ASSERT_TRUE(loop->try_enter());
  loop->leave();
  const absl::Time begin = Clock::system().now();
  loop->sleep(absl::Microseconds(300));
  EXPECT_GE(Clock::system().now() - begin, absl::Microseconds(300));
  end(*loop);
}

TEST(EventLoop, ThreadsThatTakeTurnsLoseNothing) {
  auto loop = make_loop();
  LoopThread thread;
  ASSERT_TRUE(thread.start(loop, WaitPolicy()).ok());
  constexpr int kThreads = 3;
  constexpr int kPosts = 2000;
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kPosts; ++i) {
        loop->post([&ran] { ++ran; });
        if (loop->try_enter()) {
          loop->poll();
          if (i % 2 == 0) {
            loop->leave();
          } else {
            loop->pause(i % 3 == 0);
            // A thread that pauses must drive again.
            if (loop->try_enter()) loop->leave();
          }
        }
      }
    });
  }
  for (std::thread& other : threads) other.join();
  while (ran < kThreads * kPosts) std::this_thread::yield();
  loop->post([&loop] { loop->end_in_loop(); });
  thread.join();
  EXPECT_EQ(ran, kThreads * kPosts);
}

}  // namespace
}  // namespace gradwire::transport
