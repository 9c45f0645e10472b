#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradwire/base/error.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using testing::Group;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Ranks;

[[maybe_unused]] const bool barriers_use_local_backend = (testing::use_local_backend(), true);

// A timeout that is long enough for all ranks that take part to arrive.
constexpr absl::Duration kLate = absl::Seconds(2);

TEST(MonitoredBarrier, NamesAllMissingRanksAndLeavesTheGroupUsable) {
  Ranks ranks(4);
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() % 2 == 0) group->monitored_barrier(kLate);
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(results[rank].ToString(),
                AllOf(HasSubstr("monitored_barrier #0"), HasSubstr("ranks 1, 3 did not arrive within 2s")));
  }
  // A rank that arrives late gets the error at once.
  const auto late = ranks.results([](const Group& group) {
    if (group->rank() % 2 == 1) group->monitored_barrier();
  });
  for (int rank : {1, 3}) EXPECT_THAT(late[rank].ToString(), HasSubstr("ranks 1, 3 did not arrive"));
  ranks.run([](const Group& group) {
    group->monitored_barrier();
    group->all_reduce(at::ones({2}));
  });
}

TEST(MonitoredBarrier, NamesOnlyTheFirstMissingRankOnRequest) {
  Ranks ranks(4);
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() % 2 == 0) group->monitored_barrier(kLate, /*wait_all_ranks=*/false);
  });
  EXPECT_THAT(results[0].ToString(), AllOf(HasSubstr("rank 1 did not arrive"), Not(HasSubstr("3 did"))));
}

TEST(MonitoredBarrier, MissingRankZeroIsNamedByTheOthers) {
  Ranks ranks(3);
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() != 0) group->monitored_barrier(kLate);
  });
  for (int rank : {1, 2}) EXPECT_THAT(results[rank].ToString(), HasSubstr("rank 0 did not arrive"));
}

TEST(MonitoredBarrier, LeavesLittleInTheStore) {
  const auto store = std::make_shared<store::HashStore>();
  Ranks ranks(3, {.store = store});
  ranks.run([](const Group& group) {
    for (int i = 0; i < 3; ++i) group->monitored_barrier();
  });
  const int64_t after_three = store->num_keys();
  ranks.run([](const Group& group) {
    for (int i = 0; i < 50; ++i) group->monitored_barrier();
  });
  EXPECT_EQ(store->num_keys(), after_three);
}

}  // namespace
}  // namespace gradwire::collectives
