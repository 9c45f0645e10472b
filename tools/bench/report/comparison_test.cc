#include "gradwire/tools/bench/report/comparison.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CompareRounds, TheSameDistributionIsUnchanged) {
  const RoundsComparison result =
      compare_rounds("p50_us", {10, 11, 9, 10.5, 9.5}, {9.6, 10.4, 10.1, 9.4, 11});
  EXPECT_EQ(result.change, Change::kUnchanged);
  EXPECT_LE(result.low, result.times_better);
  EXPECT_GE(result.high, result.times_better);
}

TEST(CompareRounds, AShiftIsFoundInItsDirection) {
  const std::vector<double> low = {10, 11, 9, 10.5, 9.5};
  const std::vector<double> high = {13, 14, 12, 13.5, 12.5};
  EXPECT_EQ(compare_rounds("p50_us", low, high).change, Change::kSlower);
  EXPECT_EQ(compare_rounds("p50_us", high, low).change, Change::kFaster);
  EXPECT_NEAR(compare_rounds("p50_us", low, high).times_better, 10.0 / 13, 1e-9);
  // More is better.
  EXPECT_EQ(compare_rounds("calls_per_s", low, high).change, Change::kFaster);
  EXPECT_EQ(compare_rounds("calls_per_s", high, low).change, Change::kSlower);
}

TEST(CompareRounds, OneDisturbedRoundDoesNotCount) {
  EXPECT_EQ(compare_rounds("p50_us", {10, 10.1, 9.9, 10, 10.1}, {10, 10.1, 50, 9.9, 10}).change,
            Change::kUnchanged);
}

TEST(CompareRounds, ASmallDifferenceDoesNotCount) {
  EXPECT_EQ(compare_rounds("p50_us", {10, 10, 10}, {10.2, 10.2, 10.2}).change, Change::kUnchanged);
  EXPECT_EQ(compare_rounds("p50_us", {10, 10, 10}, {10.4, 10.4, 10.4}).change, Change::kSlower);
}

TEST(CompareRounds, NeedsThreeRoundsOfBothRuns) {
  EXPECT_EQ(compare_rounds("p50_us", {10, 10}, {20, 20, 20}).change, Change::kTooFewRounds);
  EXPECT_EQ(compare_rounds("p50_us", {10, 10, 10}, {20, 20}).change, Change::kTooFewRounds);
  EXPECT_EQ(compare_rounds("p50_us", {10, 10, 10}, {20, 20, 20}).change, Change::kSlower);
  EXPECT_EQ(compare_rounds("p50_us", {10, 0, 10}, {20, 20, 20}).change, Change::kTooFewRounds);
}

TEST(CompareRounds, GivesTheSameIntervalEachTime) {
  const RoundsComparison first = compare_rounds("p50_us", {1, 2, 3, 4}, {2, 3, 4, 5});
  const RoundsComparison second = compare_rounds("p50_us", {1, 2, 3, 4}, {2, 3, 4, 5});
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
}

constexpr char kMachine[] = R"({"machine":{"processor":"Some CPU"}})";

std::string line(const std::string& case_name, const std::string& rounds) {
  return R"({"suite":"rpc","case":")" + case_name +
         R"(","transport":"shm","metric":"p50_us","gradwire":5.0,"peer":null,"peer_value":null,)"
         R"("ratio":null,"rounds":)" +
         rounds + "}";
}

TEST(ParseEarlierRun, ReadsTheMachineAndEachFigureOnce) {
  const auto run = parse_earlier_run(std::string(kMachine) + "\n" + line("add2", "[4.0,5.0,6.0]") + "\n" +
                                     line("add2", "[4.0,5.0,6.0]") + "\n" + line("null", "[]") + "\n\n");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->processor, "Some CPU");
  ASSERT_EQ(run->rows.size(), 2u);
  EXPECT_THAT(run->rows[0].rounds, ::testing::ElementsAre(4, 5, 6));
}

TEST(ParseEarlierRun, AnErrorSaysTheNumberOfTheLine) {
  const auto message = [](const std::string& text) {
    return std::string(parse_earlier_run(text).status().message());
  };
  EXPECT_THAT(message(std::string(kMachine) + "\n\nsuite case over\n"), HasSubstr("line 3 is not"));
  EXPECT_THAT(message("{}"), HasSubstr("line 1 is not"));
  EXPECT_THAT(message("17"), HasSubstr("line 1 is not"));
  EXPECT_THAT(message(line("add2", "[1.0]")), HasSubstr("line 1 is not"));
  EXPECT_THAT(message(""), HasSubstr("the file is empty"));
  EXPECT_THAT(message(std::string(kMachine) + "\n" + line("add2", "[\"fast\"]")), HasSubstr("line 2 is not"));
  EXPECT_THAT(message(std::string(kMachine) + "\n" + R"({"suite":"rpc"})"), HasSubstr("line 2 is not"));
}

Row row(const std::string& case_name, std::vector<double> rounds) {
  return {.suite = "rpc",
          .case_name = case_name,
          .transport = "shm",
          .metric = "p50_us",
          .gradwire = 5,
          .rounds = std::move(rounds)};
}

TEST(CompareRuns, CountsAndNamesTheChanges) {
  const EarlierRun earlier{.processor = "Some CPU",
                           .rows = {row("slow", {1, 1, 1}), row("fast", {2, 2, 2}), row("same", {3, 3, 3}),
                                    row("gone", {1, 1, 1}), row("short", {1, 1})}};
  std::vector<Row> later = {row("slow", {2, 2, 2}), row("slow", {2, 2, 2}), row("fast", {1, 1, 1}),
                            row("same", {3, 3, 3}), row("new", {1, 1, 1}),  row("short", {9, 9})};
  later[0].peer = "torch_tensorpipe";
  later[1].peer = "floor_futex";
  const RunComparison result = compare_runs(earlier, "Some CPU", later);
  EXPECT_EQ(result.slower, 1);
  EXPECT_THAT(result.text, AllOf(HasSubstr("1 -> 2 (0.5x, 0.5 to 0.5)"), HasSubstr("2 -> 1 (2x"),
                                 HasSubstr("slower 1, faster 1, unchanged 1, not compared 1 ("),
                                 Not(HasSubstr("another processor"))));
  EXPECT_THAT(compare_runs(earlier, "Other CPU", {}).text, HasSubstr("another processor: Some CPU\n"));
}

}  // namespace
}  // namespace gradwire::bench
