#include "gradwire/collectives/flight/group_metrics.h"

#include <gtest/gtest.h>

#include <deque>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/metrics/testing/strict_text.h"

namespace gradwire::collectives {
namespace {

metrics::testing::TextFamilies parsed() {
  metrics::Samples samples;
  metrics::collect_process(samples);
  const auto families = metrics::testing::parse_strictly(samples.text());
  EXPECT_TRUE(families.ok()) << families.status();
  return *families;
}

OperationRecord record(Operation operation, uint64_t bytes) {
  OperationRecord record;
  record.operation = operation;
  record.bytes = bytes;
  return record;
}

TEST(GroupMetrics, MembersOfAGroupAreAddedUp) {
  GroupMetrics one("world"), two("world"), other("other_group");
  one.ended(record(Operation::kAllReduce, 100), 4, true);
  two.ended(record(Operation::kAllReduce, 100), 8, true);
  two.ended(record(Operation::kAllReduce, 100), 2'000, false);
  other.ended(record(Operation::kBarrier, 0), 0, true);
  const auto families = parsed();
  const auto& operations = families.at("gradwire_collective_operations_total");
  EXPECT_EQ(operations.value({{"group", "world"}, {"operation", "all_reduce"}, {"result", "ok"}}), 2);
  EXPECT_EQ(operations.value({{"group", "world"}, {"result", "failed"}}), 1);
  EXPECT_EQ(operations.value({{"group", "other_group"}, {"operation", "barrier"}}), 1);
  EXPECT_EQ(families.at("gradwire_collective_bytes_total").value({{"group", "world"}}), 300);
  EXPECT_NEAR(families.at("gradwire_collective_seconds").value({{"group", "world"}}, "_sum"), 2.012, 1e-9);
}

TEST(GroupMetrics, EndedGroupsDisappear) {
  {
    GroupMetrics group("short");
    group.ended(record(Operation::kBarrier, 0), 0, true);
    EXPECT_EQ(parsed().at("gradwire_collective_operations_total").value({{"group", "short"}}), 1);
  }
  EXPECT_EQ(parsed().size(), 0u);
}

TEST(GroupMetrics, ManyGroupsBecomeOther) {
  std::deque<GroupMetrics> groups;
  for (int i = 0; i < 200; ++i) {
    groups.emplace_back(absl::StrCat("group", i));
    groups.back().ended(record(Operation::kBarrier, 0), 0, true);
  }
  const auto families = parsed();
  const auto& operations = families.at("gradwire_collective_operations_total");
  EXPECT_EQ(operations.samples.size(), 2u * (64 + 1));
  EXPECT_EQ(operations.sum({}), 200);
  EXPECT_EQ(operations.value({{"group", "other"}, {"result", "ok"}}), 200 - 64);
}

TEST(GroupMetrics, ThreadsCountTogether) {
  GroupMetrics group("threads");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1'000; ++i)
        group.ended(record(static_cast<Operation>(i % GroupMetrics::kKinds), 1), 0, i % 2 == 0);
    });
  }
  for (int i = 0; i < 20; ++i) (void)parsed();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(parsed().at("gradwire_collective_bytes_total").sum({}), 4'000);
  EXPECT_EQ(parsed().at("gradwire_collective_operations_total").sum({{"result", "failed"}}), 2'000);
}

}  // namespace
}  // namespace gradwire::collectives
