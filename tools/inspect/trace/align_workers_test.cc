#include <gtest/gtest.h>

#include <cstdlib>

#include "gradwire/tools/inspect/trace/flight_trace.h"

namespace gradwire::inspect {
namespace {

// Worker `callee` handled a call of `caller`; each span is on the clock of its worker, which is `ahead` of
// the true time.
void add_call(WorkerTrace& caller, int64_t caller_ahead, WorkerTrace& callee, int64_t callee_ahead,
              uint64_t id, int64_t sent) {
  const CallIdentity identity{caller.incarnation, id};
  caller.spans.push_back({.kind = SpanKind::kCall,
                          .name = "f",
                          .result = "OK",
                          .begin = sent + caller_ahead,
                          .end = sent + 100 + caller_ahead,
                          .id = identity});
  callee.spans.push_back({.kind = SpanKind::kHandler,
                          .name = "f",
                          .result = "OK",
                          .begin = sent + 20 + callee_ahead,
                          .end = sent + 80 + callee_ahead,
                          .id = identity});
}

std::vector<WorkerTrace> three_workers() {
  return {{.name = "a", .incarnation = 1}, {.name = "b", .incarnation = 2}, {.name = "c", .incarnation = 3}};
}

TEST(AlignWorkers, FollowsCallsOverOtherWorkers) {
  std::vector<WorkerTrace> workers = three_workers();
  for (int i = 0; i < 5; ++i) {
    add_call(workers[0], 0, workers[1], 5000, 10 + i, 1000 * i);
    add_call(workers[2], -9000, workers[1], 5000, 20 + i, 1000 * i + 500);
  }
  const std::vector<WorkerClock> clocks = align_workers(workers);
  ASSERT_EQ(clocks.size(), 3u);
  EXPECT_TRUE(clocks[1].known && clocks[2].known);
  EXPECT_EQ(clocks[0].fit.map(17), 17);
  EXPECT_LE(std::abs(clocks[1].fit.map(5000 + 700) - 700), 20);
  EXPECT_LE(std::abs(clocks[2].fit.map(-9000 + 700) - 700), 40);
}

TEST(AlignWorkers, WorkerWithoutCallsIsUnknown) {
  std::vector<WorkerTrace> workers = three_workers();
  add_call(workers[0], 0, workers[1], 5000, 1, 0);
  const std::vector<WorkerClock> clocks = align_workers(workers);
  EXPECT_TRUE(clocks[1].known);
  EXPECT_FALSE(clocks[2].known);
  EXPECT_EQ(clocks[2].fit.map(17), 17);
}

TEST(AlignWorkers, CallsWithoutAnEndAreNotUsed) {
  std::vector<WorkerTrace> workers = three_workers();
  add_call(workers[0], 0, workers[1], 5000, 1, 0);
  workers[0].spans[0].result.clear();
  EXPECT_FALSE(align_workers(workers)[1].known);
}

TEST(AlignWorkers, WorkersOfAHostShareAClock) {
  std::vector<WorkerTrace> workers = three_workers();
  workers[0].host = workers[2].host = "host-a";
  workers[1].host = "host-b";
  const std::vector<WorkerClock> clocks = align_workers(workers);
  EXPECT_TRUE(clocks[2].known);
  EXPECT_EQ(clocks[2].fit.error(), 0);
  EXPECT_FALSE(clocks[1].known);
}

TEST(AlignWorkers, ManyCallsKeepTheFastestOfEachPart) {
  std::vector<WorkerTrace> workers = three_workers();
  for (int i = 0; i < 20'000; ++i) {
    add_call(workers[0], 0, workers[1], 5000, i, 1000 * i);
    if (i % 10 != 0) workers[0].spans.back().end += 100'000;  // A slow answer.
  }
  const std::vector<WorkerClock> clocks = align_workers(workers);
  ASSERT_TRUE(clocks[1].known);
  EXPECT_LE(clocks[1].fit.error(), 25);
}

TEST(AlignWorkers, NoWorkers) { EXPECT_TRUE(align_workers({}).empty()); }

}  // namespace
}  // namespace gradwire::inspect
