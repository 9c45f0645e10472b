#include "gradwire/collectives/nccl/group_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/collectives/nccl/watchdog.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FakeWork : public WatchedWork {
 public:
  bool done() override { return ended_; }
  absl::Status device_error() override {
    MutexLock lock(mutex_);
    return lost_;
  }
  void fail(const absl::Status& reason) override {
    MutexLock lock(mutex_);
    failed_ = reason;
  }
  void end() { ended_ = true; }
  void lose_device(const absl::Status& error) {
    MutexLock lock(mutex_);
    lost_ = error;
    ended_ = true;
  }
  std::optional<absl::Status> failed() {
    MutexLock lock(mutex_);
    return failed_;
  }

 private:
  std::atomic<bool> ended_ = false;
  Mutex mutex_;
  std::optional<absl::Status> failed_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

// The members of one group in one process; the test itself polls them.
class GroupWatchTest : public ::testing::Test {
 protected:
  std::unique_ptr<GroupWatch> member(int rank, std::vector<int> ranks = {3, 5, 8}) {
    GroupWatch::Options options;
    options.group = "g";
    options.rank = rank;
    options.ranks = std::move(ranks);
    options.store = store_;
    options.clock = &clock_;
    options.check = [this, rank] { return rank == 0 ? communicators_ : absl::OkStatus(); };
    options.abort = [this](const absl::Status&) { ++aborts_; };
    return std::make_unique<GroupWatch>(std::move(options));
  }

  std::shared_ptr<FakeWork> begin(GroupWatch& watch, absl::Duration timeout) {
    auto work = std::make_shared<FakeWork>();
    watch.add(
        {.work = work, .what = "all_reduce", .number = watch.begin(), .deadline = clock_.now() + timeout});
    return work;
  }

  // Polls after the store's interval has passed.
  void poll(GroupWatch& watch) {
    clock_.advance(absl::Seconds(1));
    watch.poll();
  }

  ManualClock clock_;
  std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
  absl::Status communicators_;
  int aborts_ = 0;
};

TEST_F(GroupWatchTest, WorkThatEndsInTimeIsForgotten) {
  const auto watch = member(0);
  const auto work = begin(*watch, absl::Seconds(10));
  const std::weak_ptr<FakeWork> weak = work;
  EXPECT_LT(watch->poll(), absl::Milliseconds(50));
  work->end();
  EXPECT_EQ(watch->poll(), absl::Seconds(1));
  EXPECT_EQ(work.use_count(), 1);
  clock_.advance(absl::Hours(1));
  watch->poll();
  EXPECT_TRUE(watch->failure().ok());
  EXPECT_FALSE(work->failed().has_value());
}

TEST_F(GroupWatchTest, DeadlineFailsTheGroupAndNamesRanksThatDidNotArrive) {
  const auto first = member(0);
  const auto second = member(1);
  const auto third = member(2);
  const auto work = begin(*first, absl::Seconds(10));
  const auto theirs = begin(*second, absl::Seconds(100));
  poll(*second);
  poll(*third);
  clock_.advance(absl::Seconds(7));
  first->poll();
  EXPECT_TRUE(first->failure().ok());
  poll(*first);
  ASSERT_TRUE(work->failed().has_value());
  EXPECT_EQ(work->failed()->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(work->failed()->message()),
              AllOf(HasSubstr("all_reduce (collective number 1) of group \"g\", ranks 3, 5, 8"),
                    HasSubstr("rank 8 did not arrive")));
  EXPECT_EQ(aborts_, 1);
  EXPECT_EQ(first->failure().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(theirs->failed().has_value());
  poll(*second);
  ASSERT_TRUE(theirs->failed().has_value());
  EXPECT_EQ(theirs->failed()->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(theirs->failed()->message()),
              AllOf(HasSubstr("rank 3:"), HasSubstr("rank 8 did not")));
  EXPECT_EQ(aborts_, 2);
}

TEST_F(GroupWatchTest, WorkThatEndedBeforeTheFailureStaysOk) {
  const auto watch = member(0);
  const auto ended = begin(*watch, absl::Seconds(10));
  const auto open = begin(*watch, absl::Seconds(10));
  ended->end();
  watch->fail(absl::UnavailableError("gone"));
  EXPECT_FALSE(ended->failed().has_value());
  EXPECT_TRUE(open->failed().has_value());
}

TEST_F(GroupWatchTest, FirstReasonStaysAndLaterWorkGetsIt) {
  const auto watch = member(0);
  watch->fail(absl::UnavailableError("first"));
  watch->fail(absl::UnavailableError("second"));
  EXPECT_EQ(aborts_, 1);
  const auto work = begin(*watch, absl::Seconds(10));
  ASSERT_TRUE(work->failed().has_value());
  EXPECT_EQ(work->failed()->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(work->failed()->message()), AllOf(HasSubstr("first"), Not(HasSubstr("second"))));
}

TEST_F(GroupWatchTest, CommunicatorsErrorFailsTheGroupAlsoWhenIdle) {
  const auto watch = member(0);
  watch->poll();
  EXPECT_TRUE(watch->failure().ok());
  communicators_ = absl::UnavailableError("ncclRemoteError");
  watch->poll();
  EXPECT_THAT(std::string(watch->failure().message()), HasSubstr("ncclRemoteError"));
}

TEST_F(GroupWatchTest, LostDeviceFailsTheGroupOnAllMembers) {
  const auto first = member(0);
  const auto second = member(1);
  const auto lost = begin(*first, absl::Hours(1));
  const auto later = begin(*first, absl::Hours(1));
  const auto theirs = begin(*second, absl::Hours(1));
  lost->lose_device(absl::InternalError("illegal address"));
  poll(*first);
  ASSERT_TRUE(later->failed().has_value());
  EXPECT_THAT(std::string(later->failed()->message()),
              AllOf(HasSubstr("all_reduce (collective number 1)"), HasSubstr("illegal address")));
  poll(*second);
  ASSERT_TRUE(theirs->failed().has_value());
  EXPECT_THAT(std::string(theirs->failed()->message()), HasSubstr("rank 3:"));
}

TEST_F(GroupWatchTest, RankThatHasLeftFailsLaterCollectives) {
  const auto first = member(0, {0, 1});
  const auto second = member(1, {0, 1});
  const auto done_together = begin(*first, absl::Hours(1));
  second->begin();
  second->leave();
  // The second rank took part in the first collective, so that is not an error.
  poll(*first);
  EXPECT_TRUE(first->failure().ok());
  const auto alone = begin(*first, absl::Hours(1));
  poll(*first);
  ASSERT_TRUE(alone->failed().has_value());
  EXPECT_EQ(alone->failed()->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(alone->failed()->message()), HasSubstr("rank 1 has left after 1 collectives"));
}

TEST_F(GroupWatchTest, MessageOfRankThatLeftNamesIt) {
  const auto first = member(0, {0, 1});
  const auto second = member(1, {0, 1});
  auto work = std::make_shared<FakeWork>();
  first->add({.work = work, .what = "recv", .peer = 1});
  second->leave();
  poll(*first);
  ASSERT_TRUE(work->failed().has_value());
  EXPECT_THAT(std::string(work->failed()->message()), HasSubstr("rank 1 has left"));
}

TEST_F(GroupWatchTest, MessageThatIsLateNamesItsPeer) {
  const auto watch = member(0);
  auto work = std::make_shared<FakeWork>();
  watch->add({.work = work, .what = "recv", .peer = 2, .deadline = clock_.now() + absl::Milliseconds(10)});
  poll(*watch);
  ASSERT_TRUE(work->failed().has_value());
  EXPECT_THAT(std::string(work->failed()->message()), HasSubstr("rank 8 did not arrive"));
}

TEST_F(GroupWatchTest, KilledProcessIsNamedLongBeforeTheDeadline) {
  const auto watch = member(0, {0, 1});
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ProcessIdentity other = this_process();
  other.id = child;
  other.started = 0;
  store_->set("process/1", encode(other));
  const auto work = begin(*watch, absl::Hours(1));
  poll(*watch);
  EXPECT_TRUE(watch->failure().ok());
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  poll(*watch);
  ASSERT_TRUE(work->failed().has_value());
  EXPECT_EQ(work->failed()->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(work->failed()->message()), HasSubstr("rank 1 is lost"));
}

TEST_F(GroupWatchTest, MalformedReasonStillEndsTheGroup) {
  const auto watch = member(0);
  watch->begin();
  store_->set("failed", "99999 x");
  poll(*watch);
  EXPECT_EQ(watch->failure().code(), absl::StatusCode::kAborted);
}

TEST_F(GroupWatchTest, UnusedGroupOnlyPublishesItsProcess) {
  const auto watch = member(0);
  store_->set("failed", "14 rank 1: lost");
  poll(*watch);
  poll(*watch);
  EXPECT_TRUE(watch->failure().ok());
  EXPECT_EQ(store_->num_keys(), 2);
  watch->begin();
  poll(*watch);
  EXPECT_THAT(std::string(watch->failure().message()), HasSubstr("rank 1: lost"));
}

TEST_F(GroupWatchTest, NothingIsCheckedAfterLeaving) {
  const auto watch = member(0);
  watch->begin();
  watch->leave();
  store_->set("failed", "14 rank 1: lost");
  poll(*watch);
  EXPECT_TRUE(watch->failure().ok());
}

TEST(Watchdog, PollsAtTheDeadlineAndForgetsGroups) {
  ManualClock clock;
  Watchdog dog(clock);
  std::promise<void> aborted;
  GroupWatch::Options options;
  options.group = "g";
  options.ranks = {0};
  options.store = std::make_shared<store::HashStore>();
  options.clock = &clock;
  options.abort = [&](const absl::Status&) { aborted.set_value(); };
  options.wake = [&] { dog.wake(); };
  const auto watch = std::make_shared<GroupWatch>(std::move(options));
  dog.watch(watch);
  const auto work = std::make_shared<FakeWork>();
  watch->add({.work = work, .what = "barrier", .deadline = clock.now() + absl::Seconds(30)});
  std::future<void> notified = aborted.get_future();
  clock.advance(absl::Seconds(31));
  ASSERT_EQ(notified.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  dog.forget(watch.get());
  EXPECT_EQ(watch.use_count(), 1);
}

}  // namespace
}  // namespace gradwire::collectives::nccl
