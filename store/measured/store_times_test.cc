#include <gtest/gtest.h>

#include "gradwire/store/measured/measured_store.h"

namespace gradwire::store {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000);

TEST(StoreTimes, MeanAndSlowestOfTheLastCalls) {
  StoreTimes times;
  EXPECT_EQ(times.view(kStart).store, "");
  times.set_store("a store");
  EXPECT_EQ(times.view(kStart).store, "a store");
  EXPECT_EQ(times.view(kStart).calls, 0u);
  // The first calls are forgotten.
  for (int i = 0; i < 5; ++i) times.end(times.begin("check", kStart), kStart + absl::Hours(1));
  for (std::size_t i = 0; i < StoreTimes::kKept - 1; ++i) {
    times.end(times.begin("set", kStart), kStart + absl::Milliseconds(10));
  }
  times.end(times.begin("add", kStart), kStart + absl::Milliseconds(330));
  const StoreTimes::View view = times.view(kStart);
  EXPECT_EQ(view.calls, StoreTimes::kKept);
  EXPECT_EQ(view.mean, absl::Milliseconds(20));
  EXPECT_EQ(view.slowest, absl::Milliseconds(330));
  EXPECT_EQ(view.slowest_operation, "add");
  EXPECT_EQ(view.open_operation, "");
  EXPECT_EQ(times.view(kStart + StoreTimes::kRecent).calls, StoreTimes::kKept);
  // The last one has ended less than a minute ago, and the others earlier.
  EXPECT_EQ(times.view(kStart + StoreTimes::kRecent + absl::Milliseconds(50)).mean, absl::Milliseconds(330));
  EXPECT_EQ(times.view(kStart + absl::Hours(3)).calls, 0u);
}

TEST(StoreTimes, TheOldestOpenCall) {
  StoreTimes times;
  const uint64_t first = times.begin("set", kStart);
  const uint64_t second = times.begin("add", kStart + absl::Seconds(2));
  EXPECT_EQ(times.view(kStart + absl::Seconds(5)).open, absl::Seconds(5));
  EXPECT_EQ(times.view(kStart + absl::Seconds(5)).open_operation, "set");
  times.end(first, kStart + absl::Seconds(5));
  EXPECT_EQ(times.view(kStart + absl::Seconds(5)).open, absl::Seconds(3));
  times.end(second, kStart + absl::Seconds(5));
  // A call that has ended, or that never began.
  times.end(second, kStart + absl::Hours(1));
  times.end(99, kStart + absl::Hours(1));
  EXPECT_EQ(times.view(kStart).calls, 2u);
}

}  // namespace
}  // namespace gradwire::store
