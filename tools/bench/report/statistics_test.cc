#include "gradwire/tools/bench/report/statistics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Field;

Round round_of(std::vector<float> micros, double cpu_us = 0) {
  Measurement member{.micros = std::move(micros)};
  member.calls = static_cast<int64_t>(member.micros.size());
  member.timed_calls = member.calls;
  member.seconds = 2;
  return {.members = {member}, .cpu_us = cpu_us};
}

TEST(Percentile, IsASampleOfNearestRank) {
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0.99), 5);
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0), 1);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(Median, AnEvenNumberOfValuesGivesTheMeanOfTheMiddleOnes) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), 0);
}

TEST(Improvement, IsAboveOneWhenOursIsBetter) {
  EXPECT_EQ(improvement("p50_us", 4, 80), 20);
  EXPECT_EQ(improvement("calls_per_s", 200, 10), 20);
  EXPECT_EQ(improvement("steps_per_s", 200, 10), 20);
  EXPECT_EQ(improvement("GB_per_s", 1, 4), 0.25);
  EXPECT_EQ(improvement("p50_us", 0, 80), 0);
}

TEST(LatencyFigures, OneDisturbedRoundDoesNotDecideTheMedian) {
  const auto figures =
      latency_figures({round_of({1, 1, 1}), round_of({90, 90, 90, 90, 90, 90, 90}), round_of({2, 2, 2})}, 0);
  EXPECT_EQ(figure(figures, "p50_us"), 2);
  EXPECT_THAT(figures[0].rounds, ElementsAre(1, 90, 2));
}

TEST(LatencyFigures, ATailHasRoundsIfEachRoundHasEnoughSamples) {
  std::vector<float> many(100, 1);
  many[3] = many[4] = 50;
  const auto full = latency_figures({round_of(many), round_of(std::vector<float>(100, 2))}, 0);
  ASSERT_EQ(full[1].metric, "p99_us");
  EXPECT_THAT(full[1].rounds, ElementsAre(50, 2));
  const auto partial = latency_figures({round_of(many), round_of({7})}, 0);
  ASSERT_EQ(partial[1].metric, "p99_us");
  EXPECT_TRUE(partial[1].rounds.empty());
}

TEST(MedianFigure, HasTheMedianAndTheRounds) {
  const Figure figure = median_figure("a", {3, 1, 2});
  EXPECT_EQ(figure.value, 2);
  EXPECT_THAT(figure.rounds, ElementsAre(3, 1, 2));
}

TEST(LatencyFigures, TailsNeedSamples) {
  EXPECT_EQ(figure(latency_figures({round_of({1, 2, 3})}, 0), "p99_us"), 0);
  std::vector<float> many(1000, 1);
  many[0] = 50;
  const auto figures = latency_figures({round_of(many)}, 0);
  EXPECT_EQ(figure(figures, "p99_us"), 1);
  EXPECT_EQ(figure(figures, "p999_us"), 1);
  many[1] = 50;
  EXPECT_EQ(figure(latency_figures({round_of(many)}, 0), "p999_us"), 50);
}

TEST(LatencyFigures, BandwidthIsBytesOverTheMedian) {
  EXPECT_THAT(figure(latency_figures({round_of({100, 100, 100})}, 2 << 20), "GB_per_s"),
              DoubleNear(20.97, 0.01));
  const auto figures = latency_figures({round_of({100}), round_of({200})}, 2 << 20);
  ASSERT_EQ(figures[1].metric, "GB_per_s");
  EXPECT_THAT(figures[1].rounds, ElementsAre(DoubleNear(20.97, 0.01), DoubleNear(10.49, 0.01)));
}

TEST(LatencyFigures, ProcessorTimeLeavesOutTheBenchItself) {
  Round round = round_of({10, 10, 10, 10}, 100);
  round.members[0].own_cpu_us = 60;
  EXPECT_EQ(figure(latency_figures({round}, 0), "cpu_us_per_call"), 10);
}

TEST(RateFigures, AddUpTheMembers) {
  Round round = round_of({1, 1, 1, 1}, 80);
  round.members.push_back(round.members[0]);
  EXPECT_THAT(rate_figures({round}), ElementsAre(Field(&Figure::value, 4), Field(&Figure::value, 10)));
  EXPECT_THAT(rate_figures({round, round})[0].rounds, ElementsAre(4, 4));
}

TEST(Span, IsFromTheFirstStartToTheLastEnd) {
  Round round;
  round.members = {{.begin_ns = 5'000'000, .end_ns = 8'000'000},
                   {.begin_ns = 6'000'000, .end_ns = 17'000'000}};
  EXPECT_EQ(span_figure({round}).value, 12);
  EXPECT_EQ(span_figure({round}).metric, "first_contact_ms");
}

TEST(OwnFigures, AreMediansOverMembersAndRounds) {
  const auto member = [](double a, double b) { return Measurement{.figures = {{"a", a}, {"b", b}}}; };
  const std::vector<Round> rounds = {{.members = {member(1, 10), member(2, 20)}},
                                     {.members = {member(9, 30)}}};
  const std::vector<Figure> figures = own_figures(rounds);
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].metric, "a");
  EXPECT_EQ(figures[0].value, 2);
  EXPECT_THAT(figures[0].rounds, ElementsAre(1.5, 9));
  EXPECT_EQ(figure(figures, "b"), 20);
  EXPECT_TRUE(own_figures({{.members = {{}}}}).empty());
}

}  // namespace
}  // namespace gradwire::bench
