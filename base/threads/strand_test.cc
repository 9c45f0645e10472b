#include "gradwire/base/threads/strand.h"

#include <optional>
#include <vector>

#include "gradwire/base/future.h"
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
