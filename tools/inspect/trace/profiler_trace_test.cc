#include "gradwire/tools/inspect/trace/profiler_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/trace/chrome_trace.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kSample[] = "tools/inspect/trace/testdata/profile.json";

WorkerTrace worker_of(const std::string& name, int64_t process) {
  WorkerTrace worker;
  worker.name = name;
  worker.process = process;
  // The clock of the spans is 0 at this time of the wall clock.
  worker.wall_ahead = 1'795'811'901'112'000'000;
  return worker;
}

std::string with_events(const std::string& events) {
  return absl::StrCat(R"({"baseTimeNanoseconds":1700000000000000000,"traceEvents":[)", events, "]}");
}

TEST(ProfilerTrace, SampleHasItsEventsOnTheWallClock) {
  const auto profile = read_profile(kSample);
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_THAT(profile->events, SizeIs(4));
  EXPECT_EQ(profile->events[0].name, "aten::linear");
  EXPECT_EQ(profile->events[0].process, 4020);
  EXPECT_EQ(profile->events[0].thread, 4020);
  // Microseconds have too few bits for a nanosecond.
  EXPECT_NEAR(static_cast<double>(profile->events[0].begin - 1'795'811'901'112'405'191), 0, 1000);
  EXPECT_EQ(profile->events[0].end - profile->events[0].begin, 228'569);
  EXPECT_EQ(profile->events[2].end - profile->events[2].begin, 50'000);
  EXPECT_EQ(profile->dropped, 0u);
}

TEST(ProfilerTrace, EventsGoToTheWorkerWhoseProcessRecordedThem) {
  std::vector<WorkerTrace> workers = {worker_of("a", 4019), worker_of("b", 4020)};
  ASSERT_TRUE(add_profile(*read_profile(kSample), "", workers).ok());
  EXPECT_THAT(workers[0].spans, SizeIs(0));
  ASSERT_THAT(workers[1].spans, SizeIs(4));
  const TraceSpan& first = workers[1].spans[0];
  EXPECT_EQ(first.kind, SpanKind::kOperator);
  EXPECT_NEAR(static_cast<double>(first.begin), 405'191, 1000);
  EXPECT_EQ(first.thread, workers[1].spans[1].thread);
  EXPECT_NE(first.thread, workers[1].spans[2].thread);
  EXPECT_NE(first.thread, workers[1].spans[3].thread);
  const std::string trace = chrome_trace(workers, std::vector<WorkerClock>(2));
  EXPECT_THAT(trace, AllOf(HasSubstr("\"cat\":\"operator\",\"name\":\"aten::addmm\""),
                           HasSubstr("\"name\":\"thread 4031\""), HasSubstr("device 0, stream 7")));
}

TEST(ProfilerTrace, WorkerMustBeKnownAndTheOnlyOne) {
  const Profile profile = *read_profile(kSample);
  std::vector<WorkerTrace> two = {worker_of("a", 1), worker_of("b", 2)};
  EXPECT_TRUE(absl::IsInvalidArgument(add_profile(profile, "", two)));
  EXPECT_TRUE(absl::IsNotFound(add_profile(profile, "c", two)));
  EXPECT_TRUE(add_profile(profile, "b", two).ok());
  EXPECT_THAT(two[1].spans, SizeIs(4));
  // A worker that was started again has its name twice.
  std::vector<WorkerTrace> rounds = {worker_of("a", 1), worker_of("a", 4020)};
  EXPECT_TRUE(add_profile(profile, "a", rounds).ok());
  EXPECT_THAT(rounds[1].spans, SizeIs(4));
  std::vector<WorkerTrace> no_clock = {worker_of("a", 1)};
  no_clock[0].wall_ahead = 0;
  EXPECT_TRUE(absl::IsFailedPrecondition(add_profile(profile, "a", no_clock)));
}

TEST(ProfilerTrace, TimesWithoutABaseAreThoseOfTheWallClock) {
  const auto profile = parse_profile(
      R"({"traceEvents":[{"ph":"X","name":"f","pid":1,"tid":2,"ts":1700000000000000.5,"dur":1}]})");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_NEAR(static_cast<double>(profile->events[0].begin - 1'700'000'000'000'000'500), 0, 1000);
}

TEST(ProfilerTrace, BaseMayFollowTheEvents) {
  const auto profile = parse_profile(
      R"({"traceEvents":[{"ph":"X","name":"f","pid":1,"tid":2,"ts":5,"dur":1}],"baseTimeNanoseconds":1700000000000000000})");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->events[0].begin, 1'700'000'000'000'005'000);
}

TEST(ProfilerTrace, OtherFilesAreRefused) {
  const std::string deep(100'000, '[');
  struct Case {
    std::string text;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"", "not valid JSON"},
      {"{\"traceEvents\":[", "not valid JSON"},
      {"\xff\xfe", "not valid JSON"},
      {deep, "nested"},
      {"{}", "legacy profiler"},
      {"[]", "legacy profiler"},
      // The legacy profiler counts from its own start.
      {R"([{"name":"aten::mul","ph":"X","ts":12.5,"dur":3,"tid":1,"pid":"CPU Functions","args":{}}])",
       "legacy"},
      {R"({"traceEvents":[{"ph":"X","name":"f","pid":1,"tid":2,"ts":12.5,"dur":3}]})", "legacy"},
      {with_events(R"({"ph":"X","name":"f","pid":1,"tid":2,"ts":1e300,"dur":3})"), "no events"},
      {with_events(R"([{"ph":"X","name":"f","pid":1,"tid":2,"ts":1,"dur":3}])"), "no events"},
  };
  for (const Case& each : cases) {
    const auto profile = parse_profile(each.text);
    EXPECT_TRUE(absl::IsInvalidArgument(profile.status())) << each.text.substr(0, 100);
    EXPECT_THAT(std::string(profile.status().message()), HasSubstr(each.expected));
  }
  EXPECT_THAT(std::string(read_profile("/none/p.json").status().message()), HasSubstr("/none/p.json"));
}

TEST(ProfilerTrace, MalformedEventsAndThoseOverTheLimitAreCounted) {
  const std::string good = R"({"ph":"X","name":"f","pid":1,"tid":2,"ts":1,"dur":3})";
  const auto profile = parse_profile(with_events(absl::StrCat(
      good,
      R"(,{"ph":"X","name":"f","pid":1,"tid":2,"ts":1,"dur":-3},{"ph":"X","pid":1,"ts":1,"dur":1e300},)",
      R"({"ph":"X","name":7,"pid":1,"tid":"main","ts":1,"dur":1},{"ph":"X","name":"no time","pid":1})")));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_THAT(profile->events, SizeIs(2));
  EXPECT_EQ(profile->dropped, 2u);
  const auto few = parse_profile(with_events(absl::StrCat(good, ",", good, ",", good)), /*most=*/1);
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_THAT(few->events, SizeIs(1));
  EXPECT_EQ(few->dropped, 2u);
}

TEST(ProfilerTrace, NamesAreCutAndCleaned) {
  const auto profile = parse_profile(with_events(absl::StrCat(
      R"({"ph":"X","name":"\u001b[2J)", std::string(5000, 'x'), R"(","pid":1,"tid":2,"ts":1,"dur":3})")));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->events[0].name.substr(0, 5), "?[2Jx");
  EXPECT_EQ(profile->events[0].name.size(), 256u);
}

}  // namespace
}  // namespace gradwire::inspect
