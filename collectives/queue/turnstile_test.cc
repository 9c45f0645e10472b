#include "gradwire/collectives/queue/turnstile.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "gradwire/collectives/queue/async_queue.h"

namespace gradwire::collectives {
namespace {

TEST(Turnstile, LetsThroughInTheOrderOfTickets) {
  Turnstile turnstile;
  std::vector<uint64_t> order;  // Guarded by the turnstile.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        const uint64_t ticket = turnstile.take();
        turnstile.wait(ticket);
        order.push_back(ticket);
        turnstile.leave(ticket);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(order.size(), 2000u);
  for (uint64_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
}

TEST(Turnstile, WaitEndsAtItsDeadlineAndMayBeTakenUpAgain) {
  Turnstile turnstile;
  const uint64_t first = turnstile.take();
  const uint64_t second = turnstile.take();
  turnstile.wait(first);
  EXPECT_FALSE(turnstile.wait_until(second, Clock::system().now() + absl::Milliseconds(1)));
  std::thread waiter([&] {
    turnstile.wait(second);
    turnstile.leave(second);
  });
  turnstile.leave(first);
  waiter.join();
}

TEST(AsyncQueue, RunsTasksInOrderAmongOthersTickets) {
  Turnstile turnstile;
  AsyncQueue queue;
  std::vector<uint64_t> order;  // Guarded by the turnstile.
  const uint64_t before = turnstile.take();
  for (int i = 0; i < 10; ++i) {
    const bool pushed = queue.push(
        turnstile,
        [&](uint64_t ticket, uint64_t note) {
          EXPECT_EQ(note, ticket + 100);
          turnstile.wait(ticket);
          order.push_back(ticket);
          turnstile.leave(ticket);
        },
        [](uint64_t ticket) { return ticket + 100; });
    EXPECT_TRUE(pushed);
  }
  const uint64_t after = turnstile.take();
  turnstile.wait(before);
  EXPECT_TRUE(order.empty());
  turnstile.leave(before);
  turnstile.wait(after);
  EXPECT_EQ(order.size(), 10u);
  turnstile.leave(after);
  queue.close();
  queue.join();
  EXPECT_FALSE(queue.push(
      turnstile, [](uint64_t, uint64_t) {}, [](uint64_t) { return uint64_t{0}; }));
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i + 1);
}

TEST(AsyncQueue, DestroyedByItsOwnTaskItEndsLater) {
  Turnstile turnstile;
  struct Owner {
    AsyncQueue queue;
    ~Owner() { EXPECT_TRUE(queue.on_thread()); }
  };
  auto owner = std::make_shared<Owner>();
  Mutex mutex;
  CondVar changed;
  bool ended = false;
  owner->queue.push(
      turnstile,
      [&, owner = owner](uint64_t ticket, uint64_t) mutable {
        turnstile.wait(ticket);
        turnstile.leave(ticket);
        while (owner.use_count() > 1) std::this_thread::yield();
        owner.reset();
        MutexLock lock(mutex);
        ended = true;
        changed.notify_all();
      },
      [](uint64_t) { return uint64_t{0}; });
  owner.reset();
  MutexLock lock(mutex);
  while (!ended && changed.wait_for(mutex, absl::Seconds(30))) {
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace gradwire::collectives
