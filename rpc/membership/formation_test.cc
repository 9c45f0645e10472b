#include <gtest/gtest.h>

#include "gradwire/rpc/membership/group_log.h"

namespace gradwire::rpc {
namespace {

using Kind = RosterEntry::Kind;

struct Log {
  void join(uint64_t incarnation, int32_t id, int32_t world_size) {
    const Worker worker{"w" + std::to_string(incarnation), id, incarnation};
    (void)roster.apply({.kind = Kind::kJoin, .worker = worker, .world_size = world_size});
    formation.joined(roster);
  }
  void leave(uint64_t incarnation) {
    (void)roster.apply({.kind = Kind::kLeave, .worker = {.incarnation = incarnation}});
    formation.removed(incarnation);
  }
  bool refuse(uint64_t incarnation, int32_t id) { return formation.refuse(roster, incarnation, id); }
  Roster roster;
  Formation formation;
};

TEST(Formation, RefusalConcernsTheMembersOfAGroupThatForms) {
  Log log;
  log.join(1, 0, 3);
  log.join(2, 1, 3);
  EXPECT_TRUE(log.refuse(9, 1));
  EXPECT_TRUE(log.formation.is_refused(1));
  EXPECT_TRUE(log.formation.is_refused(2));
  EXPECT_FALSE(log.formation.is_refused(3));
}

TEST(Formation, CompleteGroupIsNotConcernedEvenAfterADeath) {
  Log log;
  log.join(1, 0, 2);
  log.join(2, 1, 2);
  EXPECT_FALSE(log.refuse(9, 1));
  log.leave(2);
  EXPECT_FALSE(log.refuse(9, 1));
  EXPECT_FALSE(log.formation.is_refused(1));
}

TEST(Formation, OpenGroupIsNotConcerned) {
  Log log;
  log.join(1, 0, 0);
  EXPECT_FALSE(log.refuse(9, 1));
}

TEST(Formation, WorkersThatJoinAfterARefusalFormAnew) {
  Log log;
  log.join(1, 0, 3);
  log.join(2, 1, 3);
  ASSERT_TRUE(log.refuse(9, 1));
  // Member 2 is refused, and has not left yet.
  log.leave(1);
  log.join(3, 0, 3);
  EXPECT_FALSE(log.formation.is_refused(3));
  log.join(4, 2, 3);
  // Three members, but one of them is about to leave: the group is not complete.
  EXPECT_TRUE(log.formation.is_forming(log.roster));
  log.leave(2);
  log.join(5, 1, 3);
  EXPECT_FALSE(log.formation.is_forming(log.roster));
  EXPECT_EQ(log.formation.refused(), 0u);
}

TEST(Formation, GroupOfOnlyRefusedMembersIsNotRefusedTwice) {
  Log log;
  log.join(1, 0, 2);
  ASSERT_TRUE(log.refuse(9, 1));
  EXPECT_FALSE(log.refuse(8, 1));
}

TEST(Formation, LateWorkerIsInformedOnceUntilAWorkerJoins) {
  Log log;
  log.join(1, 0, 4);
  log.join(2, 1, 4);
  EXPECT_FALSE(log.formation.is_late(3));
  ASSERT_TRUE(log.refuse(9, 1));
  log.leave(1);
  log.leave(2);
  EXPECT_TRUE(log.formation.has_failed());
  // The members at the time of the refusal know the reason.
  EXPECT_FALSE(log.formation.is_late(0));
  EXPECT_FALSE(log.formation.is_late(1));
  EXPECT_TRUE(log.formation.is_late(2));
  EXPECT_FALSE(log.refuse(9, 2));
  EXPECT_FALSE(log.formation.is_late(2));
  EXPECT_TRUE(log.formation.is_late(3));
  log.join(3, 0, 4);
  EXPECT_FALSE(log.formation.has_failed());
  EXPECT_FALSE(log.formation.is_late(3));
}

}  // namespace
}  // namespace gradwire::rpc
