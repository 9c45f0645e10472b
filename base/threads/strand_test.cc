#include "gradwire/base/threads/strand.h"

#include <optional>
#include <stdexcept>
#include <vector>

#include "gradwire/base/duty.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/executor_without_memory.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

std::shared_ptr<ThreadPool> make_pool(int threads = 4) {
  ThreadPool::Options options;
  options.num_threads = threads;
  return std::make_shared<ThreadPool>(options);
}

TEST(Strand, TasksStartInOrderAndOneAtATime) {
  auto pool = make_pool();
  auto strand = std::make_shared<Strand>(pool);
  int running = 0;  // Guarded by the strand alone, so ThreadSanitizer reports two tasks at once.
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    strand->post([&, i](Strand::Next next) {
      EXPECT_EQ(++running, 1);
      order.push_back(i);
      --running;
      next();
    });
  }
  pool->shutdown();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(Strand, TaskThatThrowsEndsItsTurn) {
  for (const bool has_shut_down : {false, true}) {
    auto pool = make_pool();
    if (has_shut_down) pool->shutdown();
    auto strand = std::make_shared<Strand>(pool);
    int ran = 0;
    for (int i = 0; i < 3; ++i) {
      strand->post([&ran](Strand::Next) {
        ++ran;
        throw std::runtime_error("the task fails");
      });
    }
    pool->shutdown();
    EXPECT_EQ(ran, 3);
  }
}

TEST(Strand, NextTaskWaitsForTheTurnNotForTheReturn) {
  auto pool = make_pool();
  auto strand = std::make_shared<Strand>(pool);
  std::optional<Strand::Next> kept;
  Promise<void> first_returned, second_ran;
  strand->post([&](Strand::Next next) {
    kept = std::move(next);
    first_returned.set_value();
  });
  strand->post([&](Strand::Next) { second_ran.set_value(); });
  first_returned.future().wait();
  EXPECT_FALSE(second_ran.future().wait_for(absl::Milliseconds(20)));
  (*kept)();
  second_ran.future().wait();
  pool->shutdown();
}

TEST(Strand, TaskPostedToAnIdleStrandRuns) {
  auto pool = make_pool();
  auto strand = std::make_shared<Strand>(pool);
  for (int i = 0; i < 3; ++i) {
    Promise<void> ended;
    strand->post([&](Strand::Next next) {
      next();
      ended.set_value();
    });
    EXPECT_TRUE(ended.future().wait_for(absl::Seconds(60)));
  }
  pool->shutdown();
}

TEST(Strand, RemovedTaskNeverRunsAndDelaysNoOther) {
  auto pool = make_pool();
  auto strand = std::make_shared<Strand>(pool);
  std::optional<Strand::Next> kept;
  Promise<void> first_ran, last_ran;
  const uint64_t first = strand->post([&](Strand::Next next) {
    kept = std::move(next);
    first_ran.set_value();
  });
  EXPECT_EQ(first, 0u);
  auto held = std::make_shared<int>(1);
  bool removed_ran = false;
  const uint64_t removed = strand->post([held, &removed_ran](Strand::Next) { removed_ran = true; });
  const uint64_t last = strand->post([&](Strand::Next) { last_ran.set_value(); });
  first_ran.future().wait();
  // The task is destroyed with what remove() returns.
  EXPECT_NE(strand->remove(removed), nullptr);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(strand->remove(removed), nullptr);
  (*kept)();
  last_ran.future().wait();
  EXPECT_EQ(strand->remove(last), nullptr);
  EXPECT_FALSE(removed_ran);
  pool->shutdown();
}

TEST(Strand, DroppedTurnPassesOn) {
  auto pool = make_pool(1);
  auto strand = std::make_shared<Strand>(pool);
  Promise<void> ran;
  strand->post([](Strand::Next) {});
  strand->post([&](Strand::Next) { ran.set_value(); });
  ran.future().wait();
  pool->shutdown();
}

TEST(Strand, TurnPassedTwiceStartsOneTask) {
  auto pool = make_pool();
  auto strand = std::make_shared<Strand>(pool);
  int running = 0;
  for (int i = 0; i < 100; ++i) {
    strand->post([&](Strand::Next next) {
      EXPECT_EQ(++running, 1);
      --running;
      next();
      next();
    });
  }
  pool->shutdown();
  EXPECT_EQ(running, 0);
}

struct Marker {};
using Mark = ExecutionSlot<Marker>;

TEST(Strand, TasksRunInOrderThoughTheExecutorHasNoMemory) {
  auto strand = std::make_shared<Strand>(std::make_shared<ExecutorWithoutMemory>());
  std::vector<int> order;
  Strand::Next first;
  strand->post([&](Strand::Next next) { first = std::move(next); });
  for (int i = 0; i < 3; ++i) strand->post([&, i](Strand::Next) { order.push_back(i); });
  first();
  EXPECT_EQ(order, std::vector<int>({0, 1, 2}));
}

TEST(Strand, TasksThatTheExecutorRefusesMayWait) {
  auto strand = std::make_shared<Strand>(std::make_shared<ExecutorWithoutMemory>());
  std::vector<bool> duties;
  Strand::Next first;
  strand->post([&](Strand::Next next) { first = std::move(next); });
  for (int i = 0; i < 2; ++i) strand->post([&](Strand::Next) { duties.push_back(on_duty()); });
  const DutyScope duty;
  first();
  EXPECT_EQ(duties, std::vector<bool>({false, false}));
}

TEST(Strand, StateOfOneTaskNeverReachesTheNext) {
  auto pool = make_pool(1);
  auto strand = std::make_shared<Strand>(pool);
  Mark::Scope poster(std::make_shared<Marker>());
  int dirty = 0;
  for (int i = 0; i < 3; ++i) {
    strand->post([&](Strand::Next next) {
      if (Mark::get() != nullptr) ++dirty;
      Mark::Scope mine(std::make_shared<Marker>());
      next();
    });
  }
  pool->shutdown();
  strand->post([&](Strand::Next) {
    if (Mark::get() != nullptr) ++dirty;
  });
  EXPECT_EQ(dirty, 0);
  EXPECT_NE(Mark::get(), nullptr);
}

TEST(Strand, LongQueueAfterShutdownDoesNotOverflowTheStack) {
  auto pool = make_pool(1);
  auto strand = std::make_shared<Strand>(pool);
  std::optional<Strand::Next> kept;
  strand->post([&](Strand::Next next) { kept = std::move(next); });
  int ran = 0;
  for (int i = 0; i < 100'000; ++i) strand->post([&](Strand::Next) { ++ran; });
  pool->shutdown();
  (*kept)();
  EXPECT_EQ(ran, 100'000);
}

}  // namespace
}  // namespace gradwire
