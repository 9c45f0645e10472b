#include "gradwire/store/formation/group_formation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/testing/recorded_progress.h"
#include "gradwire/store/formation/formation_record.h"
#include "gradwire/store/formation/rank_claim.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::store {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Answer = absl::StatusOr<GroupMembership>;

class GroupFormations : public ::testing::Test {
 protected:
  Answer join(const GroupFormation& request) {
    GroupFormation timed = request;
    timed.deadline = Clock::system().now() + absl::Seconds(60);
    return form_group(store_, timed);
  }

  // Joins on another thread. Returns when the rank waits for the others; the future's destructor waits for
  // the thread.
  std::future<Answer> join_and_wait(const GroupFormation& request, int64_t number = 0) {
    auto answer = std::async(std::launch::async, [this, request] { return join(request); });
    EXPECT_TRUE(store_.try_wait({absl::StrCat(number, "/waiting/", request.rank)}).ok());
    return answer;
  }

  std::vector<GroupMembership> meet(const std::vector<GroupFormation>& requests) {
    std::vector<std::future<Answer>> answers;
    for (const GroupFormation& request : requests)
      answers.push_back(std::async(std::launch::async, [this, request] { return join(request); }));
    std::vector<GroupMembership> memberships;
    for (auto& answer : answers) {
      Answer membership = answer.get();
      EXPECT_TRUE(membership.ok()) << membership.status();
      memberships.push_back(membership.value_or(GroupMembership()));
    }
    return memberships;
  }

  void leave(const std::vector<GroupMembership>& memberships) {
    for (const GroupMembership& membership : memberships) leave_group(store_, membership);
  }

  // Writes the keys that another process leaves when it waits as this rank.
  void write_member(int rank, const RankClaim& claim) {
    store_.set(absl::StrCat("0/world_size"), absl::StrCat(claim.world_size));
    store_.set(absl::StrCat("0/rank/", rank), claim.text());
    store_.set(absl::StrCat("0/waiting/", rank), claim.text());
  }

  static RankClaim on_another_host(int world_size) {
    return {
        .world_size = world_size, .process = {.space = "elsewhere", .id = 77, .started = 5}, .host = "other"};
  }

  static RankClaim ended(int world_size) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
    RankClaim claim = RankClaim::make(world_size);
    claim.process.id = child;
    return claim;
  }

  const std::string self_ = RankClaim::make(1).name();
  HashStore store_;
};

TEST_F(GroupFormations, GroupsOneAfterTheOtherAreNumbered) {
  for (const int rank : {0, -1}) {
    const std::vector<GroupMembership> first =
        meet({{.rank = rank, .world_size = 2}, {.rank = rank < 0 ? -1 : 1, .world_size = 2}});
    EXPECT_EQ(first[0].rank + first[1].rank, 1);
    EXPECT_EQ(first[0].number, first[1].number);
    leave(first);
    // The next group may have any size.
    const std::vector<GroupMembership> second =
        meet({{.rank = 0, .world_size = 3}, {.rank = 1, .world_size = 3}, {.rank = 2, .world_size = 3}});
    EXPECT_EQ(second[2].number, first[0].number + 1);
    leave(second);
  }
}

TEST_F(GroupFormations, RankThatHasLeftComesToTheNextGroupAndWaitsForTheOthers) {
  const std::vector<GroupMembership> first =
      meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}});
  leave({first[0]});
  auto again = join_and_wait({.rank = 0, .world_size = 2}, 1);
  leave({first[1]});
  EXPECT_TRUE(join({.rank = 1, .world_size = 2}).ok());
  EXPECT_TRUE(again.get().ok());
}

TEST_F(GroupFormations, WaitNamesTheRanksThatHaveNotArrived) {
  RecordedProgress shown;
  HurriedClock clock;
  auto first = join_and_wait({.rank = 1, .world_size = 4, .progress = {&shown, &clock}});
  shown.wait_for(1);
  EXPECT_THAT(shown.texts(), ElementsAre(absl::StrCat("1 of 4 processes have arrived in the ",
                                                      store_.description(), ", waiting for ranks 0, 2, 3")));
  EXPECT_EQ(shown.states()[0].done, 1);
  EXPECT_EQ(shown.states()[0].total, 4);
  auto second = join_and_wait({.rank = 3, .world_size = 4});
  auto third = join_and_wait({.rank = 2, .world_size = 4});
  EXPECT_TRUE(join({.rank = 0, .world_size = 4}).ok());
  EXPECT_TRUE(first.get().ok());
}

TEST_F(GroupFormations, OnlyTheLowestWaitingRankReports) {
  RecordedProgress low, high;
  HurriedClock low_clock, high_clock;
  auto first = join_and_wait({.rank = 1, .world_size = 3, .progress = {&low, &low_clock}});
  low.wait_for(1);
  auto second = join_and_wait({.rank = 2, .world_size = 3, .progress = {&high, &high_clock}});
  EXPECT_TRUE(join({.rank = 0, .world_size = 3}).ok());
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_THAT(low.texts(), Contains(absl::StrCat("1 of 3 processes have arrived in the ",
                                                 store_.description(), ", waiting for ranks 0, 2")));
  EXPECT_THAT(high.texts(), IsEmpty());
}

TEST_F(GroupFormations, OpenGroupWaitsForNobody) {
  EXPECT_EQ(join({.world_size = 0}).value().rank, 0);
  EXPECT_EQ(join({.rank = 7, .world_size = 0}).value().rank, 7);
  EXPECT_EQ(join({.world_size = 0}).value().rank, 1);
  const absl::Status closed = join({.rank = 0, .world_size = 2}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(closed)) << closed;
}

TEST_F(GroupFormations, WorldSizeMismatchIsReportedToAllInAnyOrder) {
  int64_t number = 0;
  for (const int first : {2, 3, 4}) {
    const int second = first == 3 ? 2 : 3;
    auto waiting = join_and_wait({.rank = 1, .world_size = first}, number);
    const absl::Status refusal = join({.rank = 0, .world_size = second, .may_end_store = true}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refusal)) << refusal;
    EXPECT_EQ(waiting.get().status(), refusal);
    EXPECT_THAT(std::string(refusal.message()),
                AllOf(HasSubstr(absl::StrCat("rank 1 reports world_size=", first, " (", self_)),
                      HasSubstr(absl::StrCat("rank 0 reports world_size=", second, " (", self_))));
    // A process that arrives too late gets the reason as well, once.
    EXPECT_EQ(join({.rank = 2, .world_size = 3}).status(), refusal);
    ++number;
  }
  const std::vector<GroupMembership> memberships =
      meet({{.rank = 0, .world_size = 3}, {.rank = 1, .world_size = 3}, {.rank = 2, .world_size = 3}});
  EXPECT_EQ(memberships[0].number, number);
}

TEST_F(GroupFormations, WorldSizeMismatchIsReportedToAllWithoutRanks) {
  auto waiting = join_and_wait({.rank = 0, .world_size = 3});
  const absl::Status refusal = join({.world_size = 2}).status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kInvalidArgument) << refusal;
  EXPECT_EQ(waiting.get().status(), refusal);
}

TEST_F(GroupFormations, OpenProcessIsRefusedByAFixedSizeGroup) {
  auto waiting = join_and_wait({.rank = 0, .world_size = 2});
  const absl::Status refusal = join({.world_size = 0}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refusal)) << refusal;
  EXPECT_EQ(waiting.get().status(), refusal);
}

TEST_F(GroupFormations, RankClaimedTwiceIsReportedToAll) {
  for (const int rank : {0, 1}) {
    auto waiting = join_and_wait({.rank = rank, .world_size = 3}, rank);
    auto other = join_and_wait({.rank = 2, .world_size = 3}, rank);
    const absl::Status refusal = join({.rank = rank, .world_size = 3}).status();
    EXPECT_TRUE(absl::IsAlreadyExists(refusal)) << refusal;
    EXPECT_EQ(refusal.message(),
              absl::StrCat("rank ", rank, " is claimed by two processes: ", self_, ", and ", self_));
    EXPECT_EQ(waiting.get().status(), refusal);
    EXPECT_EQ(other.get().status(), refusal);
    EXPECT_EQ(join({.rank = 1 - rank, .world_size = 3}).status(), refusal);
  }
}

TEST_F(GroupFormations, MissingRanksAreReportedToAllAtTheFirstDeadline) {
  auto waiting = join_and_wait({.rank = 2, .world_size = 4});
  const absl::Status refusal =
      form_group(store_,
                 {.rank = 0, .world_size = 4, .deadline = Clock::system().now() + absl::Milliseconds(50)})
          .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(refusal)) << refusal;
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("ranks 1, 3 did not arrive"));
  EXPECT_EQ(waiting.get().status(), refusal);
  // A process that arrives later joins the next attempt.
  meet({{.rank = 1, .world_size = 2}, {.rank = 0, .world_size = 2}});
}

TEST_F(GroupFormations, ExtraProcessOfACompleteGroupIsRefusedWithAMembersName) {
  meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}});
  const auto expect_refusal = [&](const GroupFormation& request, absl::StatusCode code,
                                  const std::string& part) {
    const absl::Status refusal = join(request).status();
    EXPECT_EQ(refusal.code(), code) << refusal;
    EXPECT_THAT(std::string(refusal.message()), AllOf(HasSubstr(part), HasSubstr(self_)));
  };
  expect_refusal({.rank = 1, .world_size = 2}, absl::StatusCode::kAlreadyExists, "rank 1 of 2");
  expect_refusal({.world_size = 2}, absl::StatusCode::kFailedPrecondition, "full");
  expect_refusal({.rank = 2, .world_size = 3}, absl::StatusCode::kInvalidArgument, "world_size=2");
  expect_refusal({.rank = 0, .world_size = 1}, absl::StatusCode::kInvalidArgument, "world_size=1");
  expect_refusal({.world_size = 0}, absl::StatusCode::kInvalidArgument, "world_size=0");
}

TEST_F(GroupFormations, ProcessMayJoinASecondGroupBesideTheFirst) {
  meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}});
  const std::vector<GroupMembership> second =
      meet({{.rank = 0, .world_size = 2, .again = true}, {.rank = 1, .world_size = 2, .again = true}});
  EXPECT_EQ(second[0].number, 1);
}

TEST_F(GroupFormations, OtherHostsProcessIsNamed) {
  RankClaim other = on_another_host(2);
  other.host = "else\x01where";
  write_member(1, other);
  EXPECT_THAT(std::string(join({.rank = 1, .world_size = 2, .again = true}).status().message()),
              HasSubstr("process 77 on else?where, and process "));
}

TEST_F(GroupFormations, RankOfAProcessThatHasEndedIsTakenOver) {
  write_member(1, ended(3));
  // The world size of the process that ended does not count either.
  EXPECT_EQ(meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}})[0].number, 0);
}

// The next process with the rank may read that the group is complete, before it waits itself. It would take
// the group for one that is over, and wait in the next one.
TEST_F(GroupFormations, KeyOfAProcessThatHasEndedDoesNotWaitForItsSuccessor) {
  write_member(0, on_another_host(2));
  write_member(1, ended(2));
  const RankClaim next = RankClaim::make(2);
  store_.set("0/rank/1", next.text());
  FormationRecord record(store_, Clock::system().now() + absl::Seconds(60));
  ASSERT_TRUE(record.open_current().ok());
  EXPECT_FALSE(record.all_waiting(0, 2).value());
  EXPECT_EQ(record.find_missing(0, 2).value(), std::vector<int>{1});
  ASSERT_TRUE(record.set_waiting(1, next).ok());
  EXPECT_TRUE(record.all_waiting(0, 2).value());
  EXPECT_EQ(record.find_missing(0, 2).value(), std::vector<int>());
}

TEST_F(GroupFormations, GroupWithAMemberThatHasEndedIsOver) {
  write_member(0, on_another_host(2));
  write_member(1, ended(2));
  store_.set("0/result", "complete");
  EXPECT_EQ(meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}})[0].number, 1);
}

TEST_F(GroupFormations, HostsOfOneNameAreDistinguished) {
  RankClaim other = on_another_host(2);
  other.host = RankClaim::make(2).host;
  write_member(1, other);
  EXPECT_EQ(join({.rank = 0, .world_size = 2}).value().number, 0);
}

TEST_F(GroupFormations, GroupThatGoesOnWithoutAMemberNumbersTheOthersAnew) {
  write_member(0, on_another_host(2));
  write_member(1, RankClaim::make(2));
  store_.set("0/result", "complete");
  EXPECT_EQ(join({.rank = 0, .world_size = 1, .again = true}).value().number, 1);
}

TEST_F(GroupFormations, ProcessThatGivesUpGivesItsRankBack) {
  auto waiting = join_and_wait({.rank = 0, .world_size = 2});
  store_.set("0/result", "nonsense");
  EXPECT_TRUE(absl::IsFailedPrecondition(waiting.get().status()));
  EXPECT_EQ(store_.get("0/rank/0"), "");
}

TEST_F(GroupFormations, OldRefusalIsNotReported) {
  const absl::Status refusal = absl::InvalidArgumentError("why");
  FormationResult result{.refusal = refusal, .ranks = 4, .time = absl::ToUnixSeconds(absl::Now())};
  store_.set("0/result", result.text());
  EXPECT_EQ(join({.rank = 3, .world_size = 4}).status(), refusal);
  result.time -= 60;
  store_.set("0/result", result.text());
  EXPECT_EQ(join({.rank = 0, .world_size = 1}).value().number, 1);
}

// The second member waits, but did not write the result, as if it had lost its connection.
TEST_F(GroupFormations, WaitingMemberChecksAgainWhetherAllWait) {
  auto waiting = join_and_wait({.rank = 0, .world_size = 2});
  write_member(1, on_another_host(2));
  EXPECT_EQ(waiting.get().value().number, 0);
}

TEST_F(GroupFormations, InvalidKeysAreReportedOrOverwritten) {
  for (const char* result : {"nonsense", "refused", "refused 2 0 0 ok", "refused 2 0 99 x",
                             "refused -1 0 3 x", "refused 99999999 0 3 x", "refused 2 x 3 x"}) {
    store_.set("0/result", result);
    EXPECT_TRUE(absl::IsFailedPrecondition(join({.rank = 0, .world_size = 1}).status())) << result;
  }
  store_.set("0/result", "complete");
  store_.set("0/world_size", "99999999");
  EXPECT_TRUE(absl::IsFailedPrecondition(join({.rank = 0, .world_size = 1}).status()));
  store_.delete_key("0/result");
  store_.set("0/world_size", "many");
  store_.set("0/rank/0", std::string(5000, 'x'));
  EXPECT_TRUE(join({.rank = 0, .world_size = 1}).ok());
  store_.set("current", "-1");
  EXPECT_TRUE(absl::IsFailedPrecondition(join({.rank = 0, .world_size = 1}).status()));
}

TEST(RankClaim, IsReadAsWritten) {
  const RankClaim claim = RankClaim::make(5);
  const std::optional<RankClaim> read = RankClaim::read(claim.text());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->text(), claim.text());
  EXPECT_TRUE(read->is_of_this_process());
  EXPECT_FALSE(read->has_ended());
  for (std::size_t size = 0; size < claim.text().size(); ++size) {
    const std::optional<RankClaim> part = RankClaim::read(claim.text().substr(0, size));
    if (part.has_value()) {
      EXPECT_EQ(part->process.id, claim.process.id) << size;
    }
  }
}

TEST(FormationResult, IsReadAsWritten) {
  EXPECT_TRUE(FormationResult::read(FormationResult().text())->complete());
  const FormationResult refused{absl::AlreadyExistsError("two words"), 7, 1700000000};
  const std::optional<FormationResult> read = FormationResult::read(refused.text());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->refusal, refused.refusal);
  EXPECT_EQ(read->ranks, 7);
  EXPECT_EQ(read->time, 1700000000);
}

}  // namespace
}  // namespace gradwire::store
