#include "gradwire/tools/inspect/web/critical_path.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace gradwire::inspect {
namespace {

// A worker with a part of the pass `number` of the worker with incarnation 1.
WorkerTrace worker(const std::string& name, uint64_t incarnation) {
  WorkerTrace trace;
  trace.name = name;
  trace.incarnation = incarnation;
  return trace;
}
void part(WorkerTrace& trace, uint64_t number, int64_t begin, int64_t end, const std::string& result = "OK") {
  TraceSpan span;
  span.kind = SpanKind::kPass;
  span.id = {1, number};
  span.begin = span.ran = begin;
  span.end = end;
  span.result = result;
  trace.spans.push_back(span);
}

std::vector<WorkerClock> clocks(std::size_t count, double error = 0) {
  return std::vector<WorkerClock>(count, {.fit = ClockFit(0, 0, 0, error), .known = true});
}

// "worker begin-end" for each period.
std::vector<std::string> text(const std::vector<PassPath::Part>& path) {
  std::vector<std::string> lines;
  for (const PassPath::Part& each : path)
    lines.push_back(each.worker + " " + std::to_string(each.begin) + "-" + std::to_string(each.end));
  return lines;
}

using Lines = std::vector<std::string>;

TEST(CriticalPath, GoesThroughThePartThatEndedLast) {
  std::vector<WorkerTrace> workers = {worker("root", 1), worker("fast", 2), worker("slow", 3)};
  part(workers[0], 5, 1'000, 1'100);
  part(workers[1], 5, 1'010, 1'030);
  part(workers[2], 5, 1'020, 1'090);
  const std::optional<PassPath> pass = last_pass(workers, clocks(3));
  ASSERT_TRUE(pass);
  EXPECT_EQ(pass->root, "root");
  EXPECT_EQ(pass->number, 5u);
  EXPECT_EQ(pass->total, 100);
  EXPECT_EQ(text(pass->path), (Lines{"root 0-20", "slow 20-90", "root 90-100"}));
  EXPECT_EQ(pass->parts.size(), 3u);
}

TEST(CriticalPath, FollowsNestedAndConsecutiveParts) {
  std::vector<WorkerTrace> workers = {worker("root", 1), worker("b", 2), worker("c", 3), worker("d", 4)};
  part(workers[0], 5, 0, 100);
  part(workers[1], 5, 5, 30);   // Before c began.
  part(workers[2], 5, 40, 90);  // Waits for d.
  part(workers[3], 5, 50, 80);
  const std::optional<PassPath> pass = last_pass(workers, clocks(4));
  ASSERT_TRUE(pass);
  EXPECT_EQ(text(pass->path),
            (Lines{"root 0-5", "b 5-30", "root 30-40", "c 40-50", "d 50-80", "c 80-90", "root 90-100"}));
}

TEST(CriticalPath, TakesTheLastPassThatEnded) {
  std::vector<WorkerTrace> workers = {worker("root", 1), worker("b", 2)};
  part(workers[0], 5, 0, 100);
  part(workers[0], 6, 200, 300);
  part(workers[0], 7, 400, 500, "");  // Open.
  part(workers[0], 8, 600, 700);      // The other file is older.
  part(workers[1], 6, 210, 290);
  part(workers[1], 7, 410, 500);
  const std::optional<PassPath> pass = last_pass(workers, clocks(2));
  ASSERT_TRUE(pass);
  EXPECT_EQ(pass->number, 6u);
  EXPECT_EQ(text(pass->path), (Lines{"root 0-10", "b 10-90", "root 90-100"}));
  EXPECT_EQ(last_pass({workers[0]}, clocks(1))->number, 8u);
  EXPECT_FALSE(last_pass({}, {}));
  // Only a part, without its root.
  EXPECT_FALSE(last_pass({workers[1]}, clocks(1)));
}

TEST(CriticalPath, ClocksMayBeWrongByTheirError) {
  std::vector<WorkerTrace> workers = {worker("root", 1), worker("b", 2)};
  part(workers[0], 5, 0, 100);
  part(workers[1], 5, 50, 103);
  const std::optional<PassPath> exact = last_pass(workers, clocks(2));
  EXPECT_EQ(text(exact->path), (Lines{"root 0-100"}));
  const std::optional<PassPath> wrong = last_pass(workers, clocks(2, 4));
  EXPECT_EQ(text(wrong->path), (Lines{"root 0-50", "b 50-100"}));
  EXPECT_EQ(wrong->error, 4);
  std::vector<WorkerClock> unknown = clocks(2);
  unknown[1].known = false;
  EXPECT_LT(last_pass(workers, unknown)->error, 0);
}

TEST(CriticalPath, AnyTimesAndAnyNumberOfPartsAreAllowed) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  std::vector<WorkerTrace> workers = {worker("root", 1), worker("b", 2)};
  part(workers[0], 5, kLeast / 4, kMost / 4);
  for (int i = 0; i < 2'000; ++i) part(workers[1], 5, i % 3 == 0 ? kLeast : i, i % 5 == 0 ? kMost : 2 * i);
  const std::optional<PassPath> pass = last_pass(workers, clocks(2, 1e300));
  ASSERT_TRUE(pass);
  EXPECT_EQ(pass->parts.size(), PassPath::kMostParts);
  for (std::size_t i = 0; i < pass->path.size(); ++i) EXPECT_LT(pass->path[i].begin, pass->path[i].end);
}

}  // namespace
}  // namespace gradwire::inspect
