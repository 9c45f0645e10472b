#include "gradwire/base/polling/arrival_forecast.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

constexpr int64_t kMicro = 1'000;
constexpr int64_t kMilli = 1'000'000;

// Records `count` arrivals from `source`, one every `interval`, the first at `begin`. Returns the time of the
// last one.
int64_t arrive(ArrivalForecast& forecast, uint64_t source, int64_t begin, int64_t interval, int count) {
  for (int i = 0; i < count; ++i) forecast.record(source, begin + i * interval);
  return begin + (count - 1) * interval;
}

TEST(ArrivalForecast, FewArrivalsGiveNoForecast) {
  ArrivalForecast forecast;
  EXPECT_FALSE(forecast.next(0).has_value());
  const int64_t last = arrive(forecast, 1, kMilli, kMilli, 4);
  EXPECT_FALSE(forecast.next(last).has_value());
}

TEST(ArrivalForecast, RegularSourceIsExpectedOneIntervalAfterItsLastArrival) {
  ArrivalForecast forecast;
  const int64_t last = arrive(forecast, 1, kMilli, 2 * kMilli, 5);
  const auto window = forecast.next(last);
  ASSERT_TRUE(window.has_value());
  EXPECT_LE(window->begin, last + 2 * kMilli);
  EXPECT_GE(window->end, last + 2 * kMilli);
  EXPECT_LT(window->end - window->begin, 50 * kMicro);
  // The window has passed.
  EXPECT_FALSE(forecast.next(window->end).has_value());
}

TEST(ArrivalForecast, WindowContainsIntervalsThatDifferALittle) {
  ArrivalForecast forecast;
  int64_t now = 0;
  for (int i = 0; i < 5; ++i) forecast.record(1, now += 500 * kMicro + (i % 2 == 0 ? 0 : 30 * kMicro));
  const auto window = forecast.next(now);
  ASSERT_TRUE(window.has_value());
  EXPECT_LE(window->begin, now + 500 * kMicro);
  EXPECT_GE(window->end, now + 530 * kMicro);
}

TEST(ArrivalForecast, IntervalsThatDifferMuchGiveNoForecast) {
  ArrivalForecast forecast;
  int64_t now = 0;
  for (int i = 0; i < 20; ++i) forecast.record(1, now += (1 + i % 3) * 300 * kMicro);
  EXPECT_FALSE(forecast.next(now).has_value());
}

TEST(ArrivalForecast, OneLateArrivalDoesNotEndTheForecast) {
  ArrivalForecast forecast;
  int64_t now = arrive(forecast, 1, 0, kMilli, 10);
  forecast.record(1, now += 30 * kMilli);
  ASSERT_TRUE(forecast.next(now).has_value());
  forecast.record(1, now += kMilli);
  forecast.record(1, now += 30 * kMilli);
  EXPECT_FALSE(forecast.next(now).has_value());
}

TEST(ArrivalForecast, LongIntervalsGiveNoForecast) {
  ArrivalForecast forecast;
  const int64_t last = arrive(forecast, 1, 0, 1'000 * kMilli, 20);
  EXPECT_FALSE(forecast.next(last).has_value());
}

TEST(ArrivalForecast, FirstWindowOfSeveralSourcesIsNext) {
  ArrivalForecast forecast;
  const int64_t slow = arrive(forecast, 1, 0, 10 * kMilli, 6);
  const int64_t fast = arrive(forecast, 2, slow - 5 * kMilli, kMilli, 6);
  const auto window = forecast.next(fast);
  ASSERT_TRUE(window.has_value());
  EXPECT_GE(window->end, fast + kMilli);
  EXPECT_LT(window->end, fast + 2 * kMilli);
  const auto later = forecast.next(fast + 2 * kMilli);
  ASSERT_TRUE(later.has_value());
  EXPECT_GE(later->end, slow + 10 * kMilli);
}

TEST(ArrivalForecast, ManySourcesReplaceTheOneThatHasBeenSilentForLongest) {
  ArrivalForecast forecast;
  arrive(forecast, 1, 0, kMilli, 6);
  for (uint64_t source = 2; source <= 9; ++source)
    arrive(forecast, source, static_cast<int64_t>(source) * 10 * kMilli, 40 * kMilli, 1);
  const int64_t last = arrive(forecast, 9, 300 * kMilli, 2 * kMilli, 10);
  const auto window = forecast.next(last);
  ASSERT_TRUE(window.has_value());
  EXPECT_GE(window->end, last + 2 * kMilli);
  // Source 1 begins anew.
  forecast.record(1, last);
  forecast.record(1, last + kMilli);
  EXPECT_GE(forecast.next(last)->end, last + 2 * kMilli);
}

}  // namespace
}  // namespace gradwire
