#include "collectives/rank_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/agreement.h"
#include "collectives/process_identity.h"
#include "store/hash_store.h"
#include "store/prefix_store.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RankClaims : public ::testing::Test {
 protected:
  absl::StatusOr<RankClaim> take(int rank) { return RankClaim::take(store_, rank, "round"); }

  // As rank 0 or 1 of two, without a time that it could end by.
  absl::Status meet(int rank, const RankClaim& claim) {
    return agree({.store = *claim.world(),
                  .key = "round",
                  .rank = rank,
                  .size = 2,
                  .deadline = Clock::system().now() + absl::Seconds(60),
                  .refusable = true},
                 "");
  }

  void meet_both() {
    const absl::StatusOr<RankClaim> first = take(0);
    const absl::StatusOr<RankClaim> second = take(1);
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    std::thread other([&] { EXPECT_TRUE(meet(1, *second).ok()); });
    EXPECT_TRUE(meet(0, *first).ok());
    other.join();
  }

  // What another process would have left that came as the rank.
  void come_as_other(int rank, int64_t number, const ProcessIdentity& process) {
    EXPECT_TRUE(store_->try_add(absl::StrCat("joined/", rank), 1).ok());
    EXPECT_TRUE(
        store_->try_set(absl::StrCat("claim/", rank, "/", number), encode(process) + "\nelse\x01where").ok());
  }

  std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
};

TEST_F(RankClaims, WorldsOneAfterTheOtherAreApart) {
  meet_both();
  meet_both();
}

TEST_F(RankClaims, SecondProcessOfARankAndTheFirstHearOfEachOther) {
  for (const int waiting : {0, 1}) {
    store_ = std::make_shared<store::HashStore>();
    const auto first = take(waiting);
    ASSERT_TRUE(first.ok()) << first.status();
    absl::Status heard;
    std::thread waits([&] { heard = meet(waiting, *first); });
    const absl::Status second = take(waiting).status();
    waits.join();
    EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists) << second;
    EXPECT_EQ(heard, second);
    const std::string process = absl::StrCat("process ", getpid(), " on ");
    EXPECT_THAT(
        std::string(second.message()),
        AllOf(HasSubstr(absl::StrCat("as rank ", waiting, ": ", process)), HasSubstr(", and " + process)));
    // The other rank comes too late; then all try again.
    EXPECT_EQ(meet(1 - waiting, take(1 - waiting).value()), second);
    meet_both();
  }
}

TEST_F(RankClaims, OtherHostsProcessIsNamed) {
  come_as_other(1, 1, {.space = "elsewhere", .id = 77, .started = 5});
  EXPECT_THAT(std::string(take(1).status().message()), HasSubstr("process 77 on else?where, and process "));
}

TEST_F(RankClaims, RankOfAJoinThatFailedCanBeTakenAgain) {
  const absl::Status late = absl::DeadlineExceededError("late");
  const auto first = take(1);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->release(late), late);
  EXPECT_TRUE(take(1).ok());
}

TEST_F(RankClaims, RankOfAProcessThatHasEndedCanBeTaken) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  ProcessIdentity ended = this_process();
  ended.id = child;
  waitpid(child, nullptr, 0);
  come_as_other(1, 1, ended);
  EXPECT_TRUE(take(1).ok());
}

TEST_F(RankClaims, NonsenseIsNoClaim) {
  EXPECT_TRUE(store_->try_add("joined/1", 1).ok());
  EXPECT_TRUE(store_->try_set("claim/1/1", std::string(5000, 'x')).ok());
  EXPECT_TRUE(take(1).ok());
}

// The world before is complete: nobody can know whether that process is still in it.
TEST_F(RankClaims, TimeoutNamesWhoCameBefore) {
  come_as_other(1, 1, {.space = "elsewhere", .id = 77, .started = 5});
  store::PrefixStore world("world/1", store_);
  EXPECT_TRUE(refuse_round(world, "round", absl::OkStatus(), absl::Seconds(30)).value());
  const auto second = take(1);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->release(absl::AbortedError("no")).message(), "no");
  EXPECT_THAT(std::string(second->release(absl::DeadlineExceededError("rank 0 did not arrive")).message()),
              HasSubstr("rank 0 did not arrive; process 77 on else?where came as rank 1 before"));
}

}  // namespace
}  // namespace gradwire::collectives
