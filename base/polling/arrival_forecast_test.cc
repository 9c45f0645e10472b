#include <gtest/gtest.h>

#include "gradwire/base/polling/poll_pace.h"

namespace gradwire {
namespace {

constexpr int64_t kNsPerMicro = 1'000;
constexpr int64_t kNsPerMilli = 1'000'000;

// Records `count` arrivals from `source`, one every `interval`, the first at `begin`. Returns the time of the
// last one.
int64_t arrive(ArrivalForecast& forecast, uint64_t source, int64_t begin, int64_t interval, int count) {
  for (int i = 0; i < count; ++i) forecast.record(source, begin + i * interval);
  return begin + (count - 1) * interval;
}

TEST(ArrivalForecast, FewArrivalsGiveNoForecast) {
  ArrivalForecast forecast;
  EXPECT_FALSE(forecast.next(0).has_value());
  const int64_t last = arrive(forecast, 1, kNsPerMilli, kNsPerMilli, 4);
  EXPECT_FALSE(forecast.next(last).has_value());
}

TEST(ArrivalForecast, RegularSourceIsExpectedOneIntervalAfterItsLastArrival) {
  ArrivalForecast forecast;
  const int64_t last = arrive(forecast, 1, kNsPerMilli, 2 * kNsPerMilli, 5);
  const auto window = forecast.next(last);
  ASSERT_TRUE(window.has_value());
  EXPECT_LE(window->begin, last + 2 * kNsPerMilli);
  EXPECT_GE(window->end, last + 2 * kNsPerMilli);
  EXPECT_LT(window->end - window->begin, 50 * kNsPerMicro);
  // The window has passed.
  EXPECT_FALSE(forecast.next(window->end).has_value());
}

TEST(ArrivalForecast, WindowContainsIntervalsThatDifferALittle) {
  ArrivalForecast forecast;
  int64_t now = 0;
  for (int i = 0; i < 5; ++i)
    forecast.record(1, now += 500 * kNsPerMicro + (i % 2 == 0 ? 0 : 30 * kNsPerMicro));
  const auto window = forecast.next(now);
  ASSERT_TRUE(window.has_value());
  EXPECT_LE(window->begin, now + 500 * kNsPerMicro);
  EXPECT_GE(window->end, now + 530 * kNsPerMicro);
}

TEST(ArrivalForecast, IntervalsThatDifferMuchGiveNoForecast) {
  ArrivalForecast forecast;
  int64_t now = 0;
  for (int i = 0; i < 20; ++i) forecast.record(1, now += (1 + i % 3) * 300 * kNsPerMicro);
  EXPECT_FALSE(forecast.next(now).has_value());
}

TEST(ArrivalForecast, OneLateArrivalDoesNotEndTheForecast) {
  ArrivalForecast forecast;
  int64_t now = arrive(forecast, 1, 0, kNsPerMilli, 10);
  forecast.record(1, now += 30 * kNsPerMilli);
  ASSERT_TRUE(forecast.next(now).has_value());
  forecast.record(1, now += kNsPerMilli);
  forecast.record(1, now += 30 * kNsPerMilli);
  EXPECT_FALSE(forecast.next(now).has_value());
}

TEST(ArrivalForecast, LongIntervalsGiveNoForecast) {
  ArrivalForecast forecast;
  const int64_t last = arrive(forecast, 1, 0, 1'000 * kNsPerMilli, 20);
  EXPECT_FALSE(forecast.next(last).has_value());
}

TEST(ArrivalForecast, FirstWindowOfSeveralSourcesIsNext) {
  ArrivalForecast forecast;
  const int64_t slow = arrive(forecast, 1, 0, 10 * kNsPerMilli, 6);
  const int64_t fast = arrive(forecast, 2, slow - 5 * kNsPerMilli, kNsPerMilli, 6);
  const auto window = forecast.next(fast);
  ASSERT_TRUE(window.has_value());
  EXPECT_GE(window->end, fast + kNsPerMilli);
  EXPECT_LT(window->end, fast + 2 * kNsPerMilli);
  const auto later = forecast.next(fast + 2 * kNsPerMilli);
  ASSERT_TRUE(later.has_value());
  EXPECT_GE(later->end, slow + 10 * kNsPerMilli);
}

TEST(ArrivalForecast, ManySourcesReplaceTheOneThatHasBeenSilentForLongest) {
  ArrivalForecast forecast;
  arrive(forecast, 1, 0, kNsPerMilli, 6);
  for (uint64_t source = 2; source <= 9; ++source)
    arrive(forecast, source, static_cast<int64_t>(source) * 10 * kNsPerMilli, 40 * kNsPerMilli, 1);
  const int64_t last = arrive(forecast, 9, 300 * kNsPerMilli, 2 * kNsPerMilli, 10);
  const auto window = forecast.next(last);
  ASSERT_TRUE(window.has_value());
  EXPECT_GE(window->end, last + 2 * kNsPerMilli);
  // Source 1 begins anew.
  forecast.record(1, last);
  forecast.record(1, last + kNsPerMilli);
  EXPECT_GE(forecast.next(last)->end, last + 2 * kNsPerMilli);
}

}  // namespace
}  // namespace gradwire
