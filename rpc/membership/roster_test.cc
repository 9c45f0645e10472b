#include "gradwire/rpc/membership/roster.h"

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using What = Roster::Change::What;
using Kind = RosterEntry::Kind;

RosterEntry join(uint64_t incarnation, std::string name, int32_t id = -1, int32_t world_size = 0) {
  return {.kind = Kind::kJoin, .worker = {std::move(name), id, incarnation}, .world_size = world_size};
}
RosterEntry death(uint64_t incarnation, uint64_t by) {
  return {.kind = Kind::kDeath, .worker = {.incarnation = incarnation}, .by = by};
}
RosterEntry leave(uint64_t incarnation) {
  return {.kind = Kind::kLeave, .worker = {.incarnation = incarnation}};
}

TEST(Roster, IdsAreAssignedOnce) {
  Roster roster;
  EXPECT_EQ(roster.apply(join(1, "a")).worker.id, 0);
  EXPECT_EQ(roster.apply(join(2, "b")).worker.id, 1);
  EXPECT_EQ(roster.apply(leave(2)).what, What::kLeft);
  EXPECT_EQ(roster.apply(join(3, "b")).worker.id, 2);
  EXPECT_EQ(roster.position(), 4u);
  EXPECT_EQ(roster.members().size(), 2u);
}

TEST(Roster, AssignedIdIsAboveAllThatWereEverTaken) {
  Roster roster;
  (void)roster.apply(join(1, "a", 5));
  (void)roster.apply(join(2, "b", 2));
  EXPECT_EQ(roster.apply(join(3, "c")).worker.id, 6);
}

TEST(Roster, NameAndIdBelongToOneMemberAtATime) {
  Roster roster;
  (void)roster.apply(join(1, "a", 0, 2));
  const Roster::Change name = roster.apply(join(2, "a", 1, 2));
  EXPECT_EQ(name.what, What::kNameTaken);
  EXPECT_EQ(name.worker.incarnation, 1u);
  EXPECT_EQ(roster.apply(join(2, "b", 0, 2)).what, What::kIdTaken);
  EXPECT_EQ(roster.status(2), Roster::Status::kUnknown);
  EXPECT_EQ(roster.apply(death(1, 2)).what, What::kDied);
  EXPECT_EQ(roster.apply(join(2, "a", 0, 2)).what, What::kJoined);
  EXPECT_EQ(roster.find("a")->incarnation, 2u);
}

TEST(Roster, GroupHasOneWorldSize) {
  Roster roster;
  (void)roster.apply(join(1, "a", 0, 2));
  const Roster::Change change = roster.apply(join(2, "b", 1, 3));
  EXPECT_EQ(change.what, What::kOtherWorldSize);
  EXPECT_EQ(change.world_size, 2);
}

TEST(Roster, IncarnationNeverComesBack) {
  Roster roster;
  (void)roster.apply(join(1, "a"));
  (void)roster.apply(join(2, "b"));
  EXPECT_EQ(roster.apply(death(1, 2)).what, What::kDied);
  EXPECT_EQ(roster.apply(join(1, "a")).what, What::kNothing);
  EXPECT_EQ(roster.apply(leave(1)).what, What::kNothing);
  EXPECT_EQ(roster.status(1), Roster::Status::kDead);
  EXPECT_EQ(roster.find("a"), nullptr);
}

TEST(Roster, OneOfTwoThatAccuseEachOtherStays) {
  Roster roster;
  (void)roster.apply(join(1, "a"));
  (void)roster.apply(join(2, "b"));
  EXPECT_EQ(roster.apply(death(1, 2)).what, What::kDied);
  EXPECT_EQ(roster.apply(death(2, 1)).what, What::kNothing);
  EXPECT_EQ(roster.status(2), Roster::Status::kMember);
}

TEST(Roster, WorkerThatHasLeftCannotAccuse) {
  Roster roster;
  (void)roster.apply(join(1, "a"));
  (void)roster.apply(join(2, "b"));
  (void)roster.apply(leave(1));
  EXPECT_EQ(roster.apply(death(2, 1)).what, What::kNothing);
}

TEST(Roster, CheckChangesNothing) {
  Roster roster;
  EXPECT_EQ(roster.check(join(1, "a")).what, What::kJoined);
  EXPECT_EQ(roster.position(), 0u);
  EXPECT_TRUE(roster.members().empty());
}

}  // namespace
}  // namespace gradwire::rpc
