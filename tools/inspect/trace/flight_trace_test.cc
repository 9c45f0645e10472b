#include "gradwire/tools/inspect/trace/flight_trace.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::inspect {
namespace {

using tools::FlightCall;
using tools::FlightFile;

FlightFile file_of(const std::string& name, uint64_t incarnation) {
  FlightFile file;
  file.title = name;
  file.incarnation = incarnation;
  file.process = 100 + static_cast<int64_t>(incarnation);
  file.clock_ns = 9000;
  file.workers = {{1, "a"}, {2, "b"}};
  return file;
}

FlightCall call_of(bool made, uint64_t number, int64_t began, int64_t ended) {
  FlightCall call;
  call.identity = {1, number};
  call.made = made;
  call.peer = made ? 2 : 1;
  call.name = "f";
  call.began = began;
  call.ended = ended;
  if (ended != 0) call.code = "OK";
  return call;
}

TEST(FlightTrace, CallsBecomeSpansOfBothEnds) {
  std::vector<FlightFile> files = {file_of("a", 1), file_of("b", 2)};
  files[0].calls = {call_of(true, 7, 1000, 4000)};
  files[1].calls = {call_of(false, 7, 1500, 3500)};
  files[1].calls[0].started = 2500;
  files[1].calls[0].parent = {tools::FlightParent::Kind::kCall, 3, 4};
  const std::vector<WorkerTrace> workers = trace_of(files);
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[0].name, "a");
  EXPECT_EQ(workers[0].process, 101);
  const TraceSpan& call = workers[0].spans.at(0);
  EXPECT_EQ(call.kind, SpanKind::kCall);
  EXPECT_EQ(call.peer, "b");
  EXPECT_EQ(call.id, CallIdentity(1, 7));
  EXPECT_EQ(call.parent, CallIdentity());
  EXPECT_EQ(call.begin, 1000);
  EXPECT_EQ(call.end, 4000);
  EXPECT_EQ(call.result, "OK");
  const TraceSpan& handler = workers[1].spans.at(0);
  EXPECT_EQ(handler.kind, SpanKind::kHandler);
  EXPECT_EQ(handler.peer, "a");
  EXPECT_EQ(handler.ran, 2500);
  EXPECT_EQ(handler.parent, CallIdentity(3, 4));
}

TEST(FlightTrace, ATraceFromOutsideGoesToTheHandler) {
  std::vector<FlightFile> files = {file_of("a", 1), file_of("b", 2)};
  files[0].calls = {call_of(true, 7, 1000, 4000)};
  files[0].calls[0].parent = {tools::FlightParent::Kind::kTrace, 5, 6};
  files[1].calls = {call_of(false, 7, 1500, 3500)};
  const std::vector<WorkerTrace> workers = trace_of(files);
  EXPECT_EQ(workers[0].spans.at(0).parent, CallIdentity());
  EXPECT_EQ(workers[0].spans.at(0).trace, CallIdentity(5, 6));
  EXPECT_EQ(workers[1].spans.at(0).trace, CallIdentity(5, 6));
}

TEST(FlightTrace, OpenCallLastsUntilItsFileWasWritten) {
  std::vector<FlightFile> files = {file_of("a", 1)};
  files[0].calls = {call_of(true, 7, 1000, 0)};
  const std::vector<WorkerTrace> workers = trace_of(files);
  EXPECT_EQ(workers[0].spans.at(0).end, 9000);
  EXPECT_EQ(workers[0].spans.at(0).result, "");
}

TEST(FlightTrace, FilesOfAWorkerAreMergedAndTheLaterOneCounts) {
  std::vector<FlightFile> files = {file_of("a", 1), file_of("a", 1)};
  files[0].calls = {call_of(true, 7, 1000, 0), call_of(true, 8, 1000, 2000)};
  files[1].calls = {call_of(true, 7, 1000, 4000)};
  const std::vector<WorkerTrace> workers = trace_of(files);
  ASSERT_EQ(workers.size(), 1u);
  ASSERT_EQ(workers[0].spans.size(), 2u);
  EXPECT_EQ(workers[0].spans[0].end, 4000);
  EXPECT_EQ(workers[0].spans[1].id.second, 8u);
}

// A newer file says how many records were overwritten so far, those before an older file included.
TEST(FlightTrace, OverwrittenRecordsOfTheNewestFileCount) {
  std::vector<FlightFile> files = {file_of("a", 1), file_of("a", 1), file_of("b", 2)};
  for (FlightFile& file : files) file.capacity = 10;
  files[0].recorded = 15;
  files[1].recorded = 40;
  files[1].clock_ns = 9500;
  files[2].recorded = 10;
  for (const bool newest_first : {false, true}) {
    if (newest_first) std::swap(files[0], files[1]);
    const std::vector<WorkerTrace> workers = trace_of(files);
    EXPECT_EQ(workers.at(0).overwritten, 30u);
    EXPECT_EQ(workers.at(1).overwritten, 0u);
  }
}

TEST(FlightTrace, RanksOfACollectiveHaveAnIdentityInCommon) {
  std::vector<FlightFile> files = {file_of("a", 1), file_of("b", 2)};
  for (int rank = 0; rank < 2; ++rank) {
    FlightFile group = file_of(absl::StrCat("group \"world\", rank ", rank, " of 2"), 0);
    group.is_group = true;
    group.process = 101 + rank;
    group.collectives = {{.sequence = 4, .operation = "all_reduce", .code = "OK", .began = 10, .ended = 20},
                         {.sequence = -1, .operation = "send", .began = 30}};
    files.insert(files.begin(), group);
  }
  const std::vector<WorkerTrace> workers = trace_of(files);
  ASSERT_EQ(workers.size(), 2u);
  ASSERT_EQ(workers[0].spans.size(), 2u);
  EXPECT_EQ(workers[0].name, "a");
  EXPECT_EQ(workers[0].spans[0].id, CallIdentity()) << "a message between two ranks";
  EXPECT_EQ(workers[0].spans[1].id, workers[1].spans[1].id);
  EXPECT_NE(workers[0].spans[1].id, CallIdentity());
  EXPECT_EQ(workers[0].spans[1].peer, "group \"world\"");
}

TEST(FlightTrace, GroupsOfAProcessWithoutAWorkerHaveATraceOfTheirOwn) {
  FlightFile group = file_of("group \"world\", rank 0 of 2", 0);
  group.is_group = true;
  group.collectives = {{.sequence = 4, .operation = "all_reduce", .began = 10}};
  const std::vector<WorkerTrace> workers = trace_of({group});
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_EQ(workers[0].name, "group \"world\", rank 0 of 2");
}

}  // namespace
}  // namespace gradwire::inspect
