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
#include "gradwire/store/formation/formation_record.h"
#include "gradwire/store/formation/rank_claim.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Answer = absl::StatusOr<Place>;

class GroupFormations : public ::testing::Test {
 protected:
  Answer come(const GroupFormation& call) {
    GroupFormation timed = call;
    timed.deadline = Clock::system().now() + absl::Seconds(60);
    return form_group(store_, timed);
  }

  // Comes, and waits. The future ends with it.
  std::future<Answer> come_and_wait(const GroupFormation& call, int64_t number = 0) {
    auto answer = std::async(std::launch::async, [this, call] { return come(call); });
    EXPECT_TRUE(store_.try_wait({absl::StrCat(number, "/here/", call.rank)}).ok());
    return answer;
  }

  std::vector<Place> meet(const std::vector<GroupFormation>& calls) {
    std::vector<std::future<Answer>> answers;
    for (const GroupFormation& call : calls)
      answers.push_back(std::async(std::launch::async, [this, call] { return come(call); }));
    std::vector<Place> places;
    for (auto& answer : answers) {
      Answer place = answer.get();
      EXPECT_TRUE(place.ok()) << place.status();
      places.push_back(place.value_or(Place()));
    }
    return places;
  }

  void leave(const std::vector<Place>& places) {
    for (const Place& place : places) leave_place(store_, place);
  }

  // What another process has left that came as the rank.
  void come_as(int rank, const RankClaim& claim) {
    store_.set(absl::StrCat("0/world_size"), absl::StrCat(claim.world_size));
    store_.set(absl::StrCat("0/rank/", rank), claim.text());
    store_.set(absl::StrCat("0/here/", rank), "here");
  }

  static RankClaim elsewhere(int world_size) {
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
    const std::vector<Place> first =
        meet({{.rank = rank, .world_size = 2}, {.rank = rank < 0 ? -1 : 1, .world_size = 2}});
    EXPECT_EQ(first[0].rank + first[1].rank, 1);
    EXPECT_EQ(first[0].number, first[1].number);
    leave(first);
    // Of any size.
    const std::vector<Place> second =
        meet({{.rank = 0, .world_size = 3}, {.rank = 1, .world_size = 3}, {.rank = 2, .world_size = 3}});
    EXPECT_EQ(second[2].number, first[0].number + 1);
    leave(second);
  }
}

TEST_F(GroupFormations, RankThatHasLeftComesToTheNextGroupAndWaitsForTheOthers) {
  const std::vector<Place> first = meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}});
  leave({first[0]});
  auto again = come_and_wait({.rank = 0, .world_size = 2}, 1);
  leave({first[1]});
  EXPECT_TRUE(come({.rank = 1, .world_size = 2}).ok());
  EXPECT_TRUE(again.get().ok());
}

TEST_F(GroupFormations, OpenGroupWaitsForNobody) {
  EXPECT_EQ(come({.world_size = 0}).value().rank, 0);
  EXPECT_EQ(come({.rank = 7, .world_size = 0}).value().rank, 7);
  EXPECT_EQ(come({.world_size = 0}).value().rank, 1);
  const absl::Status closed = come({.rank = 0, .world_size = 2}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(closed)) << closed;
}

TEST_F(GroupFormations, SizesThatDifferAreToldToAllWhoeverComesFirst) {
  int64_t number = 0;
  for (const int first : {2, 3, 4}) {
    const int second = first == 3 ? 2 : 3;
    auto waiting = come_and_wait({.rank = 1, .world_size = first}, number);
    const absl::Status told = come({.rank = 0, .world_size = second, .may_end_store = true}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(told)) << told;
    EXPECT_EQ(waiting.get().status(), told);
    EXPECT_THAT(std::string(told.message()),
                AllOf(HasSubstr(absl::StrCat("rank 1 says world_size=", first, " (", self_)),
                      HasSubstr(absl::StrCat("rank 0 says world_size=", second, " (", self_))));
    // Who comes too late is told as well, once.
    EXPECT_EQ(come({.rank = 2, .world_size = 3}).status(), told);
    ++number;
  }
  const std::vector<Place> places =
      meet({{.rank = 0, .world_size = 3}, {.rank = 1, .world_size = 3}, {.rank = 2, .world_size = 3}});
  EXPECT_EQ(places[0].number, number);
}

TEST_F(GroupFormations, SizesThatDifferAreToldToAllWithoutRanks) {
  auto waiting = come_and_wait({.rank = 0, .world_size = 3});
  const absl::Status told = come({.world_size = 2}).status();
  EXPECT_EQ(told.code(), absl::StatusCode::kInvalidArgument) << told;
  EXPECT_EQ(waiting.get().status(), told);
}

TEST_F(GroupFormations, OpenGroupIsNoneThatAFixedOneWaitsFor) {
  auto waiting = come_and_wait({.rank = 0, .world_size = 2});
  const absl::Status told = come({.world_size = 0}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(told)) << told;
  EXPECT_EQ(waiting.get().status(), told);
}

TEST_F(GroupFormations, RankThatTwoClaimIsToldToAll) {
  for (const int rank : {0, 1}) {
    auto waiting = come_and_wait({.rank = rank, .world_size = 3}, rank);
    auto other = come_and_wait({.rank = 2, .world_size = 3}, rank);
    const absl::Status told = come({.rank = rank, .world_size = 3}).status();
    EXPECT_TRUE(absl::IsAlreadyExists(told)) << told;
    EXPECT_EQ(told.message(),
              absl::StrCat("two processes came as rank ", rank, ": ", self_, ", and ", self_));
    EXPECT_EQ(waiting.get().status(), told);
    EXPECT_EQ(other.get().status(), told);
    EXPECT_EQ(come({.rank = 1 - rank, .world_size = 3}).status(), told);
  }
}

TEST_F(GroupFormations, MissingRanksAreToldToAllWhenItIsTooLateForOne) {
  auto waiting = come_and_wait({.rank = 2, .world_size = 4});
  const absl::Status told =
      form_group(store_,
                 {.rank = 0, .world_size = 4, .deadline = Clock::system().now() + absl::Milliseconds(50)})
          .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("ranks 1, 3 did not arrive"));
  EXPECT_EQ(waiting.get().status(), told);
  // Whoever comes later is for the next attempt.
  meet({{.rank = 1, .world_size = 2}, {.rank = 0, .world_size = 2}});
}

TEST_F(GroupFormations, ExtraProcessOfACompleteGroupIsToldWhoIsInIt) {
  meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}});
  const auto expect_told = [&](const GroupFormation& call, absl::StatusCode code, const std::string& part) {
    const absl::Status told = come(call).status();
    EXPECT_EQ(told.code(), code) << told;
    EXPECT_THAT(std::string(told.message()), AllOf(HasSubstr(part), HasSubstr(self_)));
  };
  expect_told({.rank = 1, .world_size = 2}, absl::StatusCode::kAlreadyExists, "rank 1 of 2");
  expect_told({.world_size = 2}, absl::StatusCode::kFailedPrecondition, "full");
  expect_told({.rank = 2, .world_size = 3}, absl::StatusCode::kInvalidArgument, "world_size=2");
  expect_told({.rank = 0, .world_size = 1}, absl::StatusCode::kInvalidArgument, "world_size=1");
  expect_told({.world_size = 0}, absl::StatusCode::kInvalidArgument, "world_size=0");
}

TEST_F(GroupFormations, ProcessMayComeToASecondGroupBesideTheFirst) {
  meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}});
  const std::vector<Place> second =
      meet({{.rank = 0, .world_size = 2, .again = true}, {.rank = 1, .world_size = 2, .again = true}});
  EXPECT_EQ(second[0].number, 1);
}

TEST_F(GroupFormations, OtherHostsProcessIsNamed) {
  RankClaim other = elsewhere(2);
  other.host = "else\x01where";
  come_as(1, other);
  EXPECT_THAT(std::string(come({.rank = 1, .world_size = 2, .again = true}).status().message()),
              HasSubstr("process 77 on else?where, and process "));
}

TEST_F(GroupFormations, RankOfAProcessThatHasEndedIsTakenOver) {
  come_as(1, ended(3));
  // What it said does not count either.
  EXPECT_EQ(meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}})[0].number, 0);
}

TEST_F(GroupFormations, GroupWithAMemberThatHasEndedIsOver) {
  come_as(0, elsewhere(2));
  come_as(1, ended(2));
  store_.set("0/result", "complete");
  EXPECT_EQ(meet({{.rank = 0, .world_size = 2}, {.rank = 1, .world_size = 2}})[0].number, 1);
}

TEST_F(GroupFormations, HostsOfOneNameAreToldApart) {
  RankClaim other = elsewhere(2);
  other.host = RankClaim::make(2).host;
  come_as(1, other);
  EXPECT_EQ(come({.rank = 0, .world_size = 2}).value().number, 0);
}

TEST_F(GroupFormations, GroupThatGoesOnWithoutAMemberNumbersTheOthersAnew) {
  come_as(0, elsewhere(2));
  come_as(1, RankClaim::make(2));
  store_.set("0/result", "complete");
  EXPECT_EQ(come({.rank = 0, .world_size = 1, .again = true}).value().number, 1);
}

TEST_F(GroupFormations, ProcessThatGivesUpGivesItsRankBack) {
  auto waiting = come_and_wait({.rank = 0, .world_size = 2});
  store_.set("0/result", "nonsense");
  EXPECT_TRUE(absl::IsFailedPrecondition(waiting.get().status()));
  EXPECT_EQ(store_.get("0/rank/0"), "");
}

TEST_F(GroupFormations, RefusalOfLongAgoIsNotToldAgain) {
  const absl::Status refusal = absl::InvalidArgumentError("why");
  FormationResult result{.refusal = refusal, .ranks = 4, .time = absl::ToUnixSeconds(absl::Now())};
  store_.set("0/result", result.text());
  EXPECT_EQ(come({.rank = 3, .world_size = 4}).status(), refusal);
  result.time -= 60;
  store_.set("0/result", result.text());
  EXPECT_EQ(come({.rank = 0, .world_size = 1}).value().number, 1);
}

// As if the last one's question, whether all are there, had not been answered.
TEST_F(GroupFormations, WhoWaitsLooksAgainWhetherAllAreThere) {
  auto waiting = come_and_wait({.rank = 0, .world_size = 2});
  come_as(1, elsewhere(2));
  EXPECT_EQ(waiting.get().value().number, 0);
}

TEST_F(GroupFormations, NonsenseInTheStoreIsToldOrOverwritten) {
  for (const char* result : {"nonsense", "refused", "refused 2 0 0 ok", "refused 2 0 99 x",
                             "refused -1 0 3 x", "refused 99999999 0 3 x", "refused 2 x 3 x"}) {
    store_.set("0/result", result);
    EXPECT_TRUE(absl::IsFailedPrecondition(come({.rank = 0, .world_size = 1}).status())) << result;
  }
  store_.set("0/result", "complete");
  store_.set("0/world_size", "99999999");
  EXPECT_TRUE(absl::IsFailedPrecondition(come({.rank = 0, .world_size = 1}).status()));
  store_.delete_key("0/result");
  store_.set("0/world_size", "many");
  store_.set("0/rank/0", std::string(5000, 'x'));
  EXPECT_TRUE(come({.rank = 0, .world_size = 1}).ok());
  store_.set("current", "-1");
  EXPECT_TRUE(absl::IsFailedPrecondition(come({.rank = 0, .world_size = 1}).status()));
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
