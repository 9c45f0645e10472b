#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/bytes/plain_reducer.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_group.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_group_test_world.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

TEST(P2pGroupFailureTest, AbsentMemberIsNamedWithinTheDeadline) {
  for (const std::size_t count : {1, 100'000}) {
    GroupWorld world(3, "default", /*absent=*/{1});
    world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
    const absl::Time start = Clock::system().now();
    world.run([&, count = count](P2pGroup& group, int rank) {
      std::vector<double> data = values<double>(count, rank);
      const absl::Status status =
          group.all_reduce(span(data), PlainReducer<double, Sum>(), in(absl::Milliseconds(300)));
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_NE(status.message().find("rank "), std::string::npos) << status;
      const absl::Status next = group.barrier(group_timeout());
      EXPECT_EQ(next.code(), absl::StatusCode::kAborted) << next;
      EXPECT_NE(next.message().find("timed out"), std::string::npos) << next;
    });
    EXPECT_LT(Clock::system().now() - start, absl::Seconds(20));
  }
}

// A member leaves while the others are in the operation. Members without a connection to it are informed,
// too.
TEST(P2pGroupFailureTest, LeavingMemberFailsTheOperationOnAllOthers) {
  for (const std::size_t count : {1, 1'000'000}) {
    GroupWorld world(5, "default");
    world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
    world.run([](P2pGroup& group, int) { EXPECT_TRUE(group.barrier(group_timeout()).ok()); });
    const absl::Time start = Clock::system().now();
    world.run([&, count = count](P2pGroup& group, int rank) {
      if (rank == 3) {
        world.ends[3]->shutdown();
        return;
      }
      std::vector<double> data = values<double>(count, rank);
      const absl::Status status = group.all_reduce(span(data), PlainReducer<double, Sum>(), group_timeout());
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_NE(status.message().find("rank 3"), std::string::npos) << status;
      EXPECT_EQ(group.barrier(group_timeout()).code(), absl::StatusCode::kAborted);
    });
    EXPECT_LT(Clock::system().now() - start, absl::Seconds(20));
  }
}

TEST(P2pGroupFailureTest, AbortEndsTheOperationOnAllMembers) {
  GroupWorld world(3, "default");
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  world.run([](P2pGroup& group, int rank) {
    if (rank == 0) {
      group.abort("aborted by the test");
      EXPECT_EQ(group.barrier(group_timeout()).code(), absl::StatusCode::kAborted);
      return;
    }
    const absl::Status status = group.barrier(group_timeout());
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_NE(status.message().find("aborted by the test"), std::string::npos) << status;
  });
}

// A group of some ranks of the world, which have other ranks in the group.
// Also before the first connection has been made.
TEST(P2pGroupFailureTest, MemberThatIsDestroyedAfterAFailureStillInformsTheOthers) {
  GroupWorld world(3, "default");
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  world.run([&](P2pGroup& group, int rank) {
    if (rank == 0) {
      group.abort("no more data");
      world.groups[0] = nullptr;
      return;
    }
    const absl::Status status = group.barrier(group_timeout());
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_NE(status.message().find("no more data"), std::string::npos) << status;
  });
}

TEST(P2pGroupFailureTest, ErrorsNameMembersByTheirRankInTheGroup) {
  GroupWorld world(3, "default");
  const auto make = [&](int position, int rank) {
    return std::make_unique<P2pGroup>(P2pGroup::Options{.p2p = world.ends[static_cast<std::size_t>(rank)],
                                                        .ranks = {0, 2},
                                                        .position = position,
                                                        .names = {0, 1},
                                                        .channel = 10});
  };
  const std::unique_ptr<P2pGroup> first = make(0, 0);
  std::unique_ptr<P2pGroup> second = make(1, 2);
  second->abort("aborted by the test");
  EXPECT_EQ(first->barrier(group_timeout()).message(), "barrier: rank 1 reports: aborted by the test");
}

TEST(P2pGroupFailureTest, DifferentSizesAreAnErrorOnBothSides) {
  GroupWorld world(2, "default");
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  world.run([](P2pGroup& group, int rank) {
    std::vector<double> data(static_cast<std::size_t>(rank + 1));
    const absl::Status status = group.all_reduce(span(data), PlainReducer<double, Sum>(), group_timeout());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  });
}

TEST(P2pGroupFailureTest, GroupsOfOneWorldAreIndependent) {
  GroupWorld world(2, "default");
  world.make_groups(1024, 4096);
  std::vector<std::unique_ptr<P2pGroup>> first = std::move(world.groups);
  world.groups.resize(2);
  world.make_groups(1024, 4096);
  first[0]->abort("over");
  world.run([](P2pGroup& group, int) { EXPECT_TRUE(group.barrier(group_timeout()).ok()); });
  EXPECT_FALSE(first[1]->barrier(group_timeout()).ok());
}

}  // namespace
}  // namespace gradwire::collectives::cpu
