#include "gradwire/tools/bench/suites/floors.h"

#include "gtest/gtest.h"

// Both members of a floor run in this process. The floors check their results themselves.
namespace gradwire::bench {
namespace {

// Returns what the last of two members measures.
Measurement measured(std::unique_ptr<BenchProcess> (*make)(), const std::string& case_name) {
  const std::unique_ptr<BenchProcess> callee = make();
  const std::unique_ptr<BenchProcess> caller = make();
  Endpoint endpoint{.rank = 0, .size = 2};
  endpoint.addresses = {callee->listen(endpoint), ""};
  callee->join(endpoint);
  endpoint.rank = 1;
  EXPECT_EQ(caller->listen(endpoint), "");
  caller->join(endpoint);
  // A second round finds the callee asleep.
  caller->run({.case_name = case_name, .seconds = 0.01});
  return caller->run({.case_name = case_name, .seconds = 0.01});
}

TEST(FloorHandoff, MovesTensorsInBothDirections) {
  for (const char* name : {"echo_64KiB", "push_64KiB", "pull_64KiB", "push_pull_64KiB", "echo_96B",
                           "push_96B", "push_pull_64KiB_every_200us"}) {
    const Measurement result = measured(&make_floor_handoff, name);
    EXPECT_GE(result.timed_calls, 3) << name;
  }
  EXPECT_THROW(measured(&make_floor_handoff, "echo_100B"), std::invalid_argument);
  EXPECT_THROW(measured(&make_floor_handoff, "add2"), std::invalid_argument);
  EXPECT_THROW(measured(&make_floor_handoff, "lend_64KiB"), std::invalid_argument);
}

TEST(FloorWake, TheBetterOfBothCoresCounts) {
  for (const char* name : {"add2_cold", "add2_every_200us"}) {
    const Measurement result = measured(&make_floor_wake, name);
    ASSERT_FALSE(result.figures.empty()) << name;
    EXPECT_EQ(result.figures[0].metric, "wake_same_core_us");
    double best = result.figures[0].value;
    for (const Figure& way : result.figures) best = std::min(best, way.value);
    EXPECT_GT(best, 0);
    EXPECT_EQ(percentile(result.micros, 0.5), best);
  }
}

TEST(FloorTcp, ReturnsMessagesAndTensors) {
  EXPECT_GE(measured(&make_floor_tcp_spin, "add2").timed_calls, 3);
  EXPECT_GE(measured(&make_floor_tcp, "add2_cold").timed_calls, 3);
  EXPECT_GE(measured(&make_floor_tcp, "echo_1MiB").timed_calls, 3);
}

TEST(FloorFutexAndSpin, AnswerEveryCall) {
  EXPECT_GE(measured(&make_floor_futex, "add2").timed_calls, 3);
  EXPECT_GE(measured(&make_floor_spin, "add2").timed_calls, 3);
  EXPECT_GE(measured(&make_floor_futex, "add2_cold").timed_calls, 3);
}

}  // namespace
}  // namespace gradwire::bench
