#include "gradwire/tools/bench/suites/case_name.h"

#include "gradwire/tools/bench/suites/case_timing.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

TEST(CaseName, HasAnOperationAndASizeOrACount) {
  EXPECT_EQ(parse_case("echo_64KiB").operation, "echo");
  EXPECT_EQ(parse_case("echo_64KiB").bytes, 65536);
  EXPECT_EQ(parse_case("push_pull_1MiB").operation, "push_pull");
  EXPECT_EQ(parse_case("all_to_all_8").operation, "all_to_all");
  EXPECT_EQ(parse_case("all_to_all_8").count, 8);
  EXPECT_EQ(parse_case("all_reduce_2_ranks_8B").operation, "all_reduce_2_ranks");
  EXPECT_EQ(parse_case("all_reduce_2_ranks_8B").bytes, 8);
  EXPECT_EQ(parse_case("echo_99999999999MiB").bytes, 0);
  EXPECT_EQ(parse_case("echo_-1MiB").bytes, 0);
  EXPECT_EQ(parse_case("pass_1GiB").bytes, 1 << 30);
}

TEST(CaseName, ColdMeansIdleBeforeEachCall) {
  const CaseName cold = parse_case("add2_cold");
  EXPECT_EQ(cold.operation, "add2");
  EXPECT_EQ(cold.idle_us, 10'000);
  EXPECT_EQ(cold.compute_us, 0);
  EXPECT_EQ(cold.family(), "add2_cold");
}

TEST(CaseName, EveryMeansComputingBeforeEachCall) {
  const CaseName often = parse_case("add2_every_200us");
  EXPECT_EQ(often.operation, "add2");
  EXPECT_EQ(often.compute_us, 200);
  EXPECT_EQ(often.idle_us, 0);
  EXPECT_EQ(often.per_core, 1);
  EXPECT_EQ(often.family(), "add2_every");
  const CaseName step = parse_case("push_pull_1MiB_every_2ms_4_per_core");
  EXPECT_EQ(step.operation, "push_pull");
  EXPECT_EQ(step.bytes, 1 << 20);
  EXPECT_EQ(step.compute_us, 2000);
  EXPECT_EQ(step.per_core, 4);
  EXPECT_EQ(step.family(), "push_pull_every_per_core");
}

TEST(CaseName, AnInvalidIntervalIsAPartOfTheOperation) {
  for (const char* name :
       {"add2_every_0us", "add2_every_2s", "add2_every_ms", "add2_every_1001ms", "add2_every_2ms_0_per_core",
        "add2_every_2ms_33_per_core", "add2_2_per_core", "add2_every_2ms_per_core", "per_core"}) {
    EXPECT_EQ(parse_case(name).compute_us, 0) << name;
    EXPECT_EQ(parse_case(name).per_core, 1) << name;
  }
  EXPECT_EQ(parse_case("add2_every_1000ms").compute_us, 1'000'000);
}

TEST(CaseTiming, FollowsFromTheNameAlone) {
  EXPECT_EQ(timing_of({.case_name = "add2_cold", .seconds = 3}).seconds, 3);
  EXPECT_EQ(timing_of({.case_name = "add2_cold", .seconds = 3}).idle_us, 10'000);
  EXPECT_EQ(timing_of({.case_name = "add2", .seconds = 1}).idle_us, 0);
  EXPECT_EQ(timing_of({.case_name = "add2_every_2ms_2_per_core", .seconds = 1}).compute_us, 2000);
  EXPECT_FALSE(timing_of({.case_name = "add2", .seconds = 1}).large);
  EXPECT_TRUE(timing_of({.case_name = "echo_4KiB", .seconds = 1}).large);
  EXPECT_FALSE(timing_of({.case_name = "echo_1KiB", .seconds = 1}).large);
}

}  // namespace
}  // namespace gradwire::bench
