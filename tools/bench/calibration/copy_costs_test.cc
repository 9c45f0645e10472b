#include "gradwire/tools/bench/calibration/copy_costs.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

TEST(MeasureCopies, HasTheCostsOfEachMethodOfTheProcessor) {
  for (const ReaderPlace place : {ReaderPlace::kSameCore, ReaderPlace::kOtherCore}) {
    for (const CopyCosts& row : measure_copies(place, {8 << 10, 256 << 10})) {
      for (const CopyMethod method : {CopyMethod::kMemcpy, CopyMethod::kString, CopyMethod::kStream}) {
        const auto& cost = row.costs[static_cast<std::size_t>(method)];
        ASSERT_EQ(cost.has_value(), is_supported(method)) << to_string(method);
        if (!cost) continue;
        EXPECT_GT(cost->copy_us, 0) << to_string(method);
        EXPECT_GT(cost->read_us, 0) << to_string(method);
      }
      EXPECT_TRUE(is_supported(row.chosen)) << to_string(row.chosen);
      EXPECT_GT(row.chosen_part, 1.0 / 3) << "one of three methods is used at least as often as the average";
      EXPECT_LE(row.chosen_part, 1);
    }
  }
}

TEST(MeasureCopies, MeasuresEachSize) {
  const auto rows = measure_copies(ReaderPlace::kSameCore, {4 << 10, 16 << 10});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].bytes, 4U << 10);
  EXPECT_EQ(rows[1].bytes, 16U << 10);
}

TEST(TextTable, ShowsCostsAndTheChoice) {
  CopyCosts row;
  row.bytes = 1 << 20;
  row.costs[0] = {.copy_us = 80, .read_us = 20.25};
  row.costs[2] = {.copy_us = 60, .read_us = 100};
  row.chosen = CopyMethod::kStream;
  row.chosen_part = 0.95;
  EXPECT_EQ(text_table(ReaderPlace::kOtherCore, {row}),
            "reader on another core: microseconds to copy + to read\n"
            "                        memcpy              string              stream  chosen\n"
            "     1 MiB         80.0 + 20.2       not available        60.0 + 100.0  stream (95 %)\n");
}

TEST(TextTable, SaysWhatWasNotMeasured) {
  EXPECT_THAT(text_table(ReaderPlace::kOtherCore, {}), ::testing::HasSubstr("only on one core"));
}

}  // namespace
}  // namespace gradwire::bench
