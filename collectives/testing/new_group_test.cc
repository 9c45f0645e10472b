#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using testing::Group;
using ::testing::HasSubstr;
using testing::Ranks;

[[maybe_unused]] const bool new_groups_use_local_backend = (testing::use_local_backend(), true);

TEST(NewGroup, MembersUseTheirRanksInTheWorld) {
  Ranks ranks(4);
  ranks.run([](const Group& world) {
    // The list of ranks may be in any order.
    const Group group = world->new_group({3, 1}, {.timeout = absl::Seconds(20)});
    const bool member = world->rank() % 2 == 1;
    EXPECT_EQ(group->rank(), member ? world->rank() / 2 : -1);
    EXPECT_EQ(group->size(), 2);
    EXPECT_EQ(group->ranks(), std::vector<int>({1, 3}));
    EXPECT_EQ(group->timeout(), absl::Seconds(20));
    if (!member) return;
    at::Tensor tensor = at::full({2}, static_cast<double>(world->rank()));
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(at::full({2}, 4.0)));
    tensor.fill_(world->rank());
    group->broadcast(tensor, 3);
    EXPECT_TRUE(tensor.equal(at::full({2}, 3.0)));
    if (world->rank() == 1) {
      EXPECT_EQ(group->recv(tensor), 3);
    } else {
      group->send(tensor, 1);
    }
    const absl::Status outside = [&] {
      try {
        group->broadcast(tensor, 0);
      } catch (const Error& error) {
        return error.status();
      }
      return absl::OkStatus();
    }();
    EXPECT_THAT(outside.ToString(), HasSubstr("rank 0, which is not one of the group's ranks: 1, 3"));
  });
}

TEST(NewGroup, NonMembersAreLeftAloneAndWarnedOnce) {
  Ranks ranks(2);
  ::testing::internal::CaptureStderr();
  ranks.run([](const Group& world) {
    const Group group = world->new_group({0});
    if (world->rank() == 0) return;
    const at::Tensor tensor = at::ones({2});
    group->all_reduce(tensor, premul_sum(3));
    group->barrier();
    EXPECT_TRUE(group->broadcast_async(tensor, 0)->is_success());
    EXPECT_EQ(group->recv(tensor), -1);
    EXPECT_TRUE(tensor.equal(at::ones({2})));
    group->destroy();
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("all_reduce on the group \"world/group1\" of ranks 0"));
  EXPECT_EQ(log.find("does nothing"), log.rfind("does nothing"));
}

TEST(NewGroup, EmptyListIsAllRanksAndGroupsAreIndependent) {
  Ranks ranks(3);
  ranks.run([](const Group& world) {
    const Group first = world->new_group();
    const Group second = world->new_group();
    EXPECT_EQ(first->size(), 3);
    EXPECT_NE(first->name(), second->name());
    const at::Tensor a = at::ones({2});
    const at::Tensor b = at::full({2}, 10.0);
    // Rank 1 uses the two groups in the opposite order.
    const bool swapped = world->rank() == 1;
    const auto one = (swapped ? second : first)->all_reduce_async(swapped ? b : a);
    const auto two = (swapped ? first : second)->all_reduce_async(swapped ? a : b);
    one->wait();
    two->wait();
    EXPECT_TRUE(a.equal(at::full({2}, 3.0)));
    EXPECT_TRUE(b.equal(at::full({2}, 30.0)));
  });
}

TEST(NewGroup, DifferentListsNameTheRankThatDiffers) {
  Ranks ranks(3);
  const auto results = ranks.results([](const Group& world) {
    world->new_group(world->rank() == 2 ? std::vector<int>{0, 2} : std::vector<int>{0, 1});
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(result.ToString(),
                AllOf(HasSubstr("rank 2 asks for ranks 0, 2,"), HasSubstr("rank 0 asks for ranks 0, 1,")));
  }
  // All ranks have counted the failed group, so the next one succeeds.
  ranks.run([](const Group& world) { EXPECT_EQ(world->new_group({1, 2})->size(), 2); });
}

TEST(NewGroup, InvalidListsAreRefused) {
  Ranks ranks(2);
  for (const std::vector<int>& list : std::vector<std::vector<int>>{{0, 0}, {2}, {-1, 0}}) {
    for (const absl::Status& result : ranks.results([&](const Group& world) { world->new_group(list); })) {
      EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
    }
  }
  ranks.run([](const Group& world) {
    EXPECT_THROW(world->new_group({}, {.backend = "smoke"}), Error);
    EXPECT_THROW(world->new_groups({{0}, {}}), Error);
    EXPECT_THROW(world->new_groups({{0}, {2}}), Error);
  });
}

TEST(NewGroup, SeveralGroupsInOneCall) {
  Ranks ranks(4);
  ranks.run([](const Group& world) {
    const std::vector<Group> groups = world->new_groups({{3, 0}, {1, 2}, {1}, {0, 1, 2, 3}});
    ASSERT_EQ(groups.size(), 4);
    EXPECT_EQ(groups[0]->ranks(), std::vector<int>({0, 3}));
    EXPECT_EQ(groups[2]->rank(), world->rank() == 1 ? 0 : -1);
    EXPECT_EQ(groups[1]->name(), "world/group1.2");
    at::Tensor tensor = at::full({1}, static_cast<double>(world->rank()));
    groups[world->rank() % 3 == 0 ? 0 : 1]->all_reduce(tensor);
    EXPECT_EQ(tensor.item<double>(), 3);
    groups[3]->all_reduce(tensor);
    EXPECT_EQ(tensor.item<double>(), 12);
    EXPECT_TRUE(world->new_groups({}).empty());
    EXPECT_EQ(world->new_group()->name(), "world/group3");
  });
}

TEST(NewGroup, RankWithOtherListsIsNamedAndLaterCallsWork) {
  Ranks ranks(3);
  const auto results = ranks.results([](const Group& world) {
    world->new_groups(world->rank() == 1 ? std::vector<std::vector<int>>{{0, 1, 2}}
                                         : std::vector<std::vector<int>>{{0, 1}, {2}});
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(result.ToString(), AllOf(HasSubstr("rank 1 asks for ranks 0, 1, 2,"),
                                         HasSubstr("rank 0 asks for ranks 0, 1 and of ranks 2,")));
  }
  ranks.run([](const Group& world) { world->new_groups({{0, 1}, {1, 2}})[1]->size(); });
}

// Rank 1 cannot make its end of the first of several groups.
absl::StatusOr<std::unique_ptr<GroupBackend>> make_unless_first_on_rank_1(const BackendContext& context) {
  const int world_rank = context.world_ranks[static_cast<std::size_t>(context.rank)];
  if (world_rank == 1 && absl::EndsWith(context.group, ".1"))
    return absl::ResourceExhaustedError("no memory");
  return testing::make_local_backend(context);
}

TEST(NewGroup, FailureOfOneListLeavesNobodyWaiting) {
  register_backend(Backend::kMpi, &make_unless_first_on_rank_1);
  Ranks ranks(4, {.timeout = absl::Seconds(60)});
  const auto results = ranks.results([](const Group& world) {
    const auto groups = world->new_groups({{0, 1}, {0, 2}, {2, 3}, {1, 3}}, {.backend = "mpi"});
    if (world->rank() != 2) return;
    EXPECT_EQ(groups[2]->ranks(), std::vector<int>({2, 3}));
  });
  EXPECT_EQ(results[1].code(), absl::StatusCode::kResourceExhausted) << results[1];
  EXPECT_EQ(results[0].code(), absl::StatusCode::kAborted) << results[0];
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 1 could not make its backend"));
  // Their groups were made, with the ends of ranks 0 and 1, which dropped them again.
  EXPECT_EQ(results[2], absl::OkStatus());
  EXPECT_EQ(results[3], absl::OkStatus());
  ranks.run([](const Group& world) { EXPECT_EQ(world->new_group()->name(), "world/group2"); });
}

TEST(NewGroup, GroupsOfASmallerGroup) {
  Ranks ranks(5);
  ranks.run([](const Group& world) {
    const Group odd = world->new_group({1, 3, 4});
    if (odd->rank() < 0) {
      EXPECT_THROW(odd->new_group(), Error);
      return;
    }
    // Only the members of the smaller group call it. The ranks are ranks of the world.
    const Group pair = odd->new_group({4, 1}, {.timeout = absl::Seconds(9)});
    EXPECT_EQ(pair->ranks(), std::vector<int>({1, 4}));
    EXPECT_EQ(pair->timeout(), absl::Seconds(9));
    EXPECT_EQ(pair->name(), "world/group1/group1");
    EXPECT_EQ(odd->new_group()->size(), 3);
    EXPECT_THROW(odd->new_group({0, 1}), Error);
    if (pair->rank() < 0) return;
    at::Tensor tensor = at::full({1}, static_cast<double>(world->rank()));
    pair->all_reduce(tensor);
    EXPECT_EQ(tensor.item<double>(), 5);
    pair->broadcast(tensor, 4);
    odd->destroy();
    EXPECT_THROW(pair->barrier(), Error);
  });
}

TEST(NewGroup, ErrorsGiveTheRanksInTheWorld) {
  Ranks ranks(4, {.timeout = absl::Seconds(3)});
  const auto results = ranks.results([](const Group& world) {
    const Group group = world->new_group({1, 3});
    if (world->rank() == 1) group->all_reduce(at::ones({1}));
  });
  EXPECT_THAT(results[1].ToString(),
              AllOf(HasSubstr("(rank 0 of 2)"), HasSubstr("rank 1 "),
                    HasSubstr("[these are ranks of the group; its ranks in the world are 1, 3]")));
}

TEST(NewGroup, DestroyingTheWorldDestroysItsGroups) {
  Ranks ranks(2);
  ranks.run([](const Group& world) {
    const Group group = world->new_group();
    world->destroy();
    EXPECT_THROW(group->barrier(), Error);
  });
}

TEST(NewGroup, FailureOfOneGroupLeavesTheOthersUsable) {
  Ranks ranks(2, {.timeout = absl::Seconds(20)});
  ranks.run([](const Group& world) {
    const Group group = world->new_group();
    world->barrier();
    if (world->rank() == 0) group->abort("for this test");
    EXPECT_THROW(group->barrier(), Error);
    world->barrier();
  });
}

}  // namespace
}  // namespace gradwire::collectives
