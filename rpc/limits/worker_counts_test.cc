#include "gradwire/rpc/limits/worker_counts.h"

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

constexpr uint64_t kA = 11, kB = 22;

TEST(WorkerCounts, EachWorkerHasItsOwnCount) {
  WorkerCounts counts;
  counts.add(kA);
  counts.add(kB);
  counts.add(kA);
  EXPECT_EQ(counts.count(kA), 2u);
  EXPECT_EQ(counts.count(kB), 1u);
  counts.remove(kA);
  EXPECT_EQ(counts.count(kA), 1u);
  EXPECT_EQ(counts.count(kB), 1u);
}

TEST(WorkerCounts, WorkersWithoutEntriesTakeNoMemory) {
  WorkerCounts counts;
  EXPECT_EQ(counts.count(kA), 0u);
  EXPECT_EQ(counts.workers(), 0u);
  counts.add(kA);
  counts.add(kA);
  counts.remove(kA);
  EXPECT_EQ(counts.workers(), 1u);
  counts.remove(kA);
  EXPECT_EQ(counts.count(kA), 0u);
  EXPECT_EQ(counts.workers(), 0u);
}

TEST(WorkerCounts, RemovingFromAWorkerWithoutEntriesDoesNothing) {
  WorkerCounts counts;
  counts.add(kB);
  counts.remove(kA);
  EXPECT_EQ(counts.count(kA), 0u);
  EXPECT_EQ(counts.workers(), 1u);
  counts.add(kA);
  EXPECT_EQ(counts.count(kA), 1u);
}

TEST(WorkerCounts, AllEntriesOfOneWorkerAreRemoved) {
  WorkerCounts counts;
  counts.add(kA);
  counts.add(kA);
  counts.add(kB);
  counts.remove_all(kA);
  EXPECT_EQ(counts.count(kA), 0u);
  EXPECT_EQ(counts.count(kB), 1u);
  EXPECT_EQ(counts.workers(), 1u);
}

}  // namespace
}  // namespace gradwire::rpc
