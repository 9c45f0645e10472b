#include "gradwire/collectives/queue/ticket_lock.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/testing/failing_threads.h"
#include "gradwire/collectives/queue/async_queue.h"

namespace gradwire::collectives {
namespace {

TEST(TicketLock, IsTakenInTheOrderOfTickets) {
  TicketLock ticket_lock;
  std::vector<uint64_t> order;  // Guarded by ticket_lock.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        const uint64_t ticket = ticket_lock.take();
        ticket_lock.wait(ticket);
        order.push_back(ticket);
        ticket_lock.leave(ticket);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(order.size(), 2000u);
  for (uint64_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
}

TEST(TicketLock, WaitEndsAtItsDeadlineAndMayBeRepeated) {
  TicketLock ticket_lock;
  const uint64_t first = ticket_lock.take();
  const uint64_t second = ticket_lock.take();
  ticket_lock.wait(first);
  EXPECT_FALSE(ticket_lock.wait_until(second, Clock::system().now() + absl::Milliseconds(1)));
  std::thread waiter([&] {
    ticket_lock.wait(second);
    ticket_lock.leave(second);
  });
  ticket_lock.leave(first);
  waiter.join();
}

TEST(AsyncQueue, RunsTasksInOrderAmongOthersTickets) {
  TicketLock ticket_lock;
  AsyncQueue queue;
  std::vector<uint64_t> order;  // Guarded by ticket_lock.
  const uint64_t before = ticket_lock.take();
  for (int i = 0; i < 10; ++i) {
    const absl::Status pushed = queue.push(
        ticket_lock,
        [&](uint64_t ticket, uint64_t note) {
          EXPECT_EQ(note, ticket + 100);
          ticket_lock.wait(ticket);
          order.push_back(ticket);
          ticket_lock.leave(ticket);
        },
        [](uint64_t ticket) { return ticket + 100; });
    EXPECT_TRUE(pushed.ok()) << pushed;
  }
  const uint64_t after = ticket_lock.take();
  ticket_lock.wait(before);
  EXPECT_TRUE(order.empty());
  ticket_lock.leave(before);
  ticket_lock.wait(after);
  EXPECT_EQ(order.size(), 10u);
  ticket_lock.leave(after);
  queue.close();
  queue.join();
  const absl::Status refused = queue.push(
      ticket_lock, [](uint64_t, uint64_t) {}, [](uint64_t) { return uint64_t{0}; });
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i + 1);
}

TEST(AsyncQueue, PushWithoutAThreadTakesNoTicket) {
  TicketLock ticket_lock;
  AsyncQueue queue;
  const auto push = [&] {
    return queue.push(
        ticket_lock,
        [&](uint64_t ticket, uint64_t) {
          ticket_lock.wait(ticket);
          ticket_lock.leave(ticket);
        },
        [](uint64_t) { return uint64_t{0}; });
  };
  {
    const FailingThreads none;
    const absl::Status refused = push();
    EXPECT_TRUE(is_local_shortage(refused)) << refused;
    EXPECT_NE(refused.message().find("RLIMIT_NPROC"), std::string::npos) << refused;
  }
  const absl::Status pushed = push();
  EXPECT_TRUE(pushed.ok()) << pushed;
  const uint64_t after = ticket_lock.take();
  EXPECT_EQ(after, 1u);
  ticket_lock.wait(after);
  ticket_lock.leave(after);
}

TEST(AsyncQueue, QueueDestroyedByItsOwnTaskEndsLater) {
  TicketLock ticket_lock;
  struct Owner {
    AsyncQueue queue;
    ~Owner() { EXPECT_TRUE(queue.on_thread()); }
  };
  auto owner = std::make_shared<Owner>();
  Mutex mutex;
  CondVar changed;
  bool ended = false;
  const absl::Status pushed = owner->queue.push(
      ticket_lock,
      [&, owner = owner](uint64_t ticket, uint64_t) mutable {
        ticket_lock.wait(ticket);
        ticket_lock.leave(ticket);
        while (owner.use_count() > 1) std::this_thread::yield();
        owner.reset();
        MutexLock lock(mutex);
        ended = true;
        changed.notify_all();
      },
      [](uint64_t) { return uint64_t{0}; });
  ASSERT_TRUE(pushed.ok()) << pushed;
  owner.reset();
  MutexLock lock(mutex);
  while (!ended && changed.wait_for(mutex, absl::Seconds(30))) {
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace gradwire::collectives
