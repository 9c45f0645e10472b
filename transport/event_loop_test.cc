#include "gradwire/transport/event_loop.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
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
  void arm_in_loop() override { armed = true; }
  void disarm_in_loop() override { armed = false; }
  bool has_data_in_loop() override { return pending > 0; }

  std::atomic<int> pending{0};
  std::atomic<bool> armed{true};
  std::atomic<int> taken{0};
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
