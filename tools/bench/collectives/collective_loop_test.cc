#include "gradwire/tools/bench/collectives/collective_loop.h"

#include <stdexcept>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/tools/bench/collectives/collective_page.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

TEST(CollectiveParse, KnowsEveryOperationWithItsRanksAndSize) {
  collective_work work = {};
  ASSERT_TRUE(collective_parse("reduce_scatter_4_ranks_64KiB", &work));
  EXPECT_EQ(work.operation, COLLECTIVE_REDUCE_SCATTER);
  EXPECT_EQ(work.ranks, 4);
  EXPECT_EQ(work.floats, 16384);
  ASSERT_TRUE(collective_parse("all_reduce_2_ranks_8B", &work));
  EXPECT_EQ(work.floats, 2);
  ASSERT_TRUE(collective_parse("barrier_2_ranks", &work));
  EXPECT_EQ(work.floats, 0);
  for (const char* other : {"add2", "reduce_ranks_8B", "reduce_2_ranks", "reduce_2_ranks_2B",
                            "reduce_99_ranks_8B", "all_2_ranks_8B", "reduce_2_ranksfoo"}) {
    EXPECT_FALSE(collective_parse(other, &work)) << other;
  }
}

// A group whose ranks are threads. Rank 0 computes the result of a call for all ranks, between two barriers.
struct Group {
  explicit Group(int ranks) : own(CollectivePage::make()), parts(static_cast<std::size_t>(ranks)) {}

  CollectivePage own;
  std::vector<std::vector<float>> parts;
  bool spoiled = false;
};

struct Rank {
  Group* group;
  collective_work work;
  collective_sync inner;
};

void all_reduce(void* given) {
  auto* rank = static_cast<Rank*>(given);
  collective_barrier_wait(&rank->inner, rank->work.rank, rank->work.ranks);
  if (rank->work.rank == 0) {
    for (std::size_t k = 0; k < rank->group->parts[0].size(); ++k) {
      float sum = 0;
      for (const std::vector<float>& part : rank->group->parts) sum += part[k];
      for (std::vector<float>& part : rank->group->parts)
        part[k] = sum + (rank->group->spoiled ? 1.0F : 0.0F);
    }
  }
  collective_barrier_wait(&rank->inner, rank->work.rank, rank->work.ranks);
}

// For each rank: whether its results were correct, its number of calls and of samples.
struct Outcome {
  std::vector<int> correct;
  std::vector<int64_t> calls;
  std::vector<int64_t> samples;
};

Outcome run(int ranks, bool spoiled) {
  Group group(ranks);
  group.spoiled = spoiled;
  CollectivePage page = CollectivePage::make();
  const auto count = static_cast<std::size_t>(ranks);
  Outcome outcome{std::vector<int>(count), std::vector<int64_t>(count), std::vector<int64_t>(count)};
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto at = static_cast<std::size_t>(r);
      group.parts[at].assign(5000, 0);
      // All threads use one mapping, because ThreadSanitizer identifies memory by its address.
      collective_sync mine = *page.sync();
      Rank rank{&group, {}, *group.own.sync()};
      rank.work.operation = COLLECTIVE_ALL_REDUCE;
      rank.work.rank = r;
      rank.work.ranks = ranks;
      rank.work.floats = 5000;
      rank.work.part = group.parts[at].data();
      std::vector<float> micros(r == 0 ? 100 : 0);
      collective_samples samples = {micros.data(), 100, 0, 0};
      outcome.correct[at] = collective_run(&rank.work, &mine, 0.01, &all_reduce, &rank, &samples);
      outcome.calls[at] = samples.calls;
      outcome.samples[at] = samples.count;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

TEST(CollectiveRun, AllRanksMakeTheSameCallsAndTheFirstTimesThem) {
  const Outcome outcome = run(3, false);
  EXPECT_THAT(outcome.correct, ::testing::Each(1));
  EXPECT_THAT(outcome.calls, ::testing::Each(outcome.calls[0]));
  EXPECT_GE(outcome.samples[0], 3);
  EXPECT_EQ(outcome.samples[1], 0);
}

TEST(CollectiveRun, AWrongResultIsFound) { EXPECT_THAT(run(2, true).correct, ::testing::Each(0)); }

TEST(CollectivePage, IsSharedByAllThatOpenItsPath) {
  CollectivePage made = CollectivePage::make();
  CollectivePage opened = CollectivePage::open(made.path());
  made.sync()->page[3] = 7;
  EXPECT_EQ(opened.sync()->page[3], 7u);
  EXPECT_THROW(CollectivePage::open("/nowhere/page"), std::runtime_error);
}

TEST(CollectiveCheck, DataOfThePreviousRoundIsWrong) {
  std::vector<float> data(100);
  collective_fill(data.data(), 100, collective_base(1, 0, 7));
  EXPECT_TRUE(collective_check(data.data(), 100, collective_base(1, 0, 7), 1));
  EXPECT_FALSE(collective_check(data.data(), 100, collective_base(1, 0, 8), 1));
  data[99] += 1;
  EXPECT_FALSE(collective_check(data.data(), 100, collective_base(1, 0, 7), 1));
}

}  // namespace
}  // namespace gradwire::bench
