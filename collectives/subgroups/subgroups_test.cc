#include "gradwire/collectives/subgroups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/group_checks.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;
using testing::Ranks;
using testing::refuses;
using testing::sum_over;

[[maybe_unused]] const bool subgroups_use_local_backend = (testing::use_local_backend(), true);

TEST(Subgroups, EqualPartsOfTheWorld) {
  Ranks ranks(6);
  ranks.run([](const Group& world) {
    const Subgroups made = new_subgroups(2, world, {.timeout = absl::Seconds(77)});
    ASSERT_EQ(made.all.size(), 3);
    const int first = world->rank() / 2 * 2;
    EXPECT_EQ(made.own->ranks(), std::vector<int>({first, first + 1}));
    EXPECT_EQ(made.own->rank(), world->rank() % 2);
    EXPECT_EQ(made.own->timeout(), absl::Seconds(77));
    EXPECT_EQ(made.own, made.all[static_cast<std::size_t>(world->rank() / 2)]);
    EXPECT_EQ(sum_over(made.own, world->rank()), 2 * first + 1);
  });
}

TEST(Subgroups, EqualPartsOfASmallerGroup) {
  Ranks ranks(5);
  ranks.run([](const Group& world) {
    const Group four = world->new_group({0, 1, 3, 4});
    if (four->rank() < 0) return;
    const Subgroups made = new_subgroups(2, four);
    EXPECT_EQ(made.own->ranks(), world->rank() < 2 ? std::vector<int>({0, 1}) : std::vector<int>({3, 4}));
    EXPECT_EQ(sum_over(made.own, world->rank()), world->rank() < 2 ? 1 : 7);
  });
}

TEST(Subgroups, SizesThatDoNotFitAreRefused) {
  Ranks ranks(4);
  ranks.run([](const Group& world) {
    refuses([&] { new_subgroups(0, world); }, "group_size must be positive, got 0");
    refuses([&] { new_subgroups(3, world); }, "has 4 ranks, which is not a multiple of group_size, 3");
    refuses([&] { new_subgroups(8, world); }, "not a multiple");
    world->barrier();
  });
}

TEST(Subgroups, ListsOfRanks) {
  Ranks ranks(5);
  ranks.run([](const Group& world) {
    const Subgroups made = new_subgroups_by_enumeration({{4, 0}, {1, 2}}, {}, world);
    ASSERT_EQ(made.all.size(), 2);
    if (world->rank() == 3) {
      EXPECT_EQ(made.own->rank(), -1);
      return;
    }
    EXPECT_EQ(sum_over(made.own, world->rank()), world->rank() % 4 == 0 ? 4 : 3);
  });
}

TEST(Subgroups, ListsWithARankTwiceAreRefused) {
  Ranks ranks(3);
  ranks.run([](const Group& world) {
    refuses(
        [&] {
          new_subgroups_by_enumeration({{0, 1}, {1, 2}}, {}, world);
        },
        "rank 1 is in list 0 and in list 1");
    refuses([&] { new_subgroups_by_enumeration({{2, 2}}, {}, world); }, "rank 2 is in list 0 and in list 0");
    refuses([&] { new_subgroups_by_enumeration({}, {}, world); }, "no lists of ranks");
    refuses([&] { new_subgroups_by_enumeration({{0}, {}}, {}, world); }, "list 1 is empty");
    refuses([&] { new_subgroups_by_enumeration({{0, 7}}, {}, world); }, "expected ranks of the group");
  });
  ranks.run([](const Group& world) { world->barrier(); });
}

TEST(Subgroups, RankWithOtherListsIsNamed) {
  Ranks ranks(3);
  const auto results = ranks.results([](const Group& world) {
    new_subgroups_by_enumeration({{0}, {world->rank() == 1 ? 1 : 2}}, {}, world);
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(result.ToString(), HasSubstr("rank 1 asks for ranks 0 and of ranks 1"));
  }
}

TEST(Subgroups, MissingRankIsNamedAtTheTimeout) {
  Ranks ranks(3, {.timeout = absl::Seconds(2)});
  const auto results = ranks.results([](const Group& world) {
    if (world->rank() != 2) new_subgroups(1, world);
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 2 did not arrive"));
}

// The lists have ranks of the parent, as in torch.distributed.
TEST(Subgroups, SplitOfASmallerGroupUsesItsRanks) {
  Ranks ranks(5);
  ranks.run([](const Group& world) {
    const Group four = world->new_group({1, 2, 3, 4});
    if (four->rank() < 0) return;
    const Group own = split_group(four, {{0, 3}, {2}});
    if (world->rank() == 2) {
      EXPECT_EQ(own->rank(), -1);
      return;
    }
    EXPECT_EQ(own->ranks(), world->rank() == 3 ? std::vector<int>({3}) : std::vector<int>({1, 4}));
    EXPECT_EQ(sum_over(own, world->rank()), world->rank() == 3 ? 3 : 5);
    // A part can be split again.
    if (world->rank() != 3)
      EXPECT_EQ(split_group(own, {{0}, {1}})->ranks(), std::vector<int>({world->rank()}));
  });
}

TEST(Subgroups, InvalidSplitsAreRefused) {
  Ranks ranks(2);
  ranks.run([](const Group& world) {
    refuses([&] { split_group(world, {}); }, "no lists of ranks");
    refuses([&] { split_group(world, {{0, 1}, {0}}); }, "rank 0 is in list 0 and in list 1");
    refuses([&] { split_group(world, {{0, 2}}); }, "group \"world\" has no rank 2; its ranks are 0 to 1");
  });
}

TEST(Subgroups, NumbersOfRanks) {
  Ranks ranks(4);
  ranks.run([](const Group& world) {
    const Group pair = world->new_group({1, 3});
    EXPECT_EQ(get_group_rank(pair, 3), 1);
    EXPECT_EQ(get_global_rank(pair, 0), 1);
    EXPECT_EQ(get_process_group_ranks(pair), std::vector<int>({1, 3}));
    refuses([&] { get_group_rank(pair, 2); },
            "rank 2 is not a member of group \"world/group1\", whose ranks are 1, 3");
    refuses([&] { get_global_rank(pair, -1); }, "has no rank -1");
  });
}

}  // namespace
}  // namespace gradwire::collectives
