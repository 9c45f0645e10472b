#include "gradwire/rpc/membership/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "absl/time/clock.h"
#include "gradwire/base/testing/recorded_progress.h"
#include "gradwire/rpc/membership/joining.h"
#include "gradwire/rpc/testing/cut_store.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Joined = absl::StatusOr<Directory::Group>;
using Life = Directory::Life;

constexpr absl::Duration kTimeout = absl::Seconds(30);

// Records the events of a directory as text, in order.
class RecordingListener : public Directory::Listener {
 public:
  void on_joined(const WorkerAddress& worker) override { add("joined " + worker.worker.name); }
  void on_left(const Worker& worker) override { add("left " + worker.name); }
  void on_died(const Worker& worker, const std::string& by, const std::string&) override {
    add("died " + worker.name + " by " + by);
  }
  void on_store_lost(const absl::Status&, bool) override {}
  void on_store_back() override {}

  // The events so far, once there are `count`.
  std::vector<std::string> wait(std::size_t count) {
    const absl::Time deadline = absl::Now() + kTimeout;
    MutexLock lock(mutex_);
    while (events_.size() < count && absl::Now() < deadline)
      changed_.wait_for(mutex_, deadline - absl::Now());
    return events_;
  }

 private:
  void add(std::string event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

class DirectoryTest : public ::testing::Test {
 protected:
  Joined join(Directory& directory, const std::string& name, int id, int world_size,
              absl::Duration timeout = kTimeout, Life life = Life::kAlive) {
    const Worker self{name, id, ++next_incarnation_};
    proto::WorkerRecord record;
    record.set_name(name);
    record.set_id(id);
    record.set_incarnation(self.incarnation);
    return directory.join(self, world_size, record, timeout,
                          [life](const proto::WorkerRecord&, absl::Duration) { return life; });
  }

  std::atomic<uint64_t> next_incarnation_{1000};
  std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
  // The listeners outlive the directories that call them.
  RecordingListener events_of_a_, events_of_b_;
  Directory a_{store_}, b_{store_}, c_{store_};
};

TEST_F(DirectoryTest, AllMembersSeeAll) {
  Joined seen_by_a;
  std::thread other([&] { seen_by_a = join(a_, "a", 0, 2); });
  Joined seen_by_b = join(b_, "b", 1, 2);
  other.join();
  for (const Joined* seen : {&seen_by_a, &seen_by_b}) {
    ASSERT_TRUE(seen->ok()) << seen->status();
    ASSERT_EQ((*seen)->members.size(), 2u);
    EXPECT_EQ((*seen)->members[0].worker.name, "a");
    EXPECT_EQ((*seen)->members[1].record.name(), "b");
  }
}

TEST_F(DirectoryTest, MissingRanksAreNamed) {
  const Joined joined = join(a_, "a", 1, 4, absl::Milliseconds(50));
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(joined.status().message(), HasSubstr("ranks 0, 2, 3 of 4 did not join"));
}

// Joins a group of three through a GroupLog, and shows the wait in `progress`.
absl::Status join_three(const std::shared_ptr<store::Store>& store, const std::string& name, int id,
                        const Progress::Target& progress) {
  GroupLog log(store);
  const Worker self{name, id, static_cast<uint64_t>(id) + 1};
  proto::WorkerRecord record;
  record.set_name(name);
  record.set_id(id);
  record.set_incarnation(self.incarnation);
  Joining joining(
      log, {self, 3, kTimeout,
            [](const proto::WorkerRecord&, absl::Duration) { return Joining::Life::kAlive; }, progress});
  return joining.run(record).status();
}

TEST(Joining, WaitNamesTheWorkersThatAreThereAndTheMissingRanks) {
  const auto store = std::make_shared<store::HashStore>();
  RecordedProgress first, last;
  HurriedClock first_clock, last_clock;
  auto a = std::async(std::launch::async, [&] { return join_three(store, "a", 1, {&first, &first_clock}); });
  first.wait_for(1);
  EXPECT_THAT(first.texts(),
              ElementsAre("worker \"a\" waits for ranks 0, 2; 1 of 3 workers have joined: \"a\""));
  EXPECT_EQ(first.states()[0].done, 1);
  EXPECT_EQ(first.states()[0].total, 3);
  auto b = std::async(std::launch::async, [&] { return join_three(store, "b", 2, {&last, &last_clock}); });
  RecordedProgress unused;
  HurriedClock unused_clock;
  EXPECT_TRUE(join_three(store, "c", 0, {&unused, &unused_clock}).ok());
  EXPECT_TRUE(a.get().ok());
  EXPECT_TRUE(b.get().ok());
  // Only the member with the lowest rank reports.
  EXPECT_THAT(last.texts(), ::testing::IsEmpty());
}

TEST_F(DirectoryTest, LinesWithABadNameArePassedOver) {
  const auto join_line = [](const std::string& name, int id, uint64_t incarnation) {
    proto::LogLine line;
    line.mutable_join()->set_world_size(0);
    line.mutable_join()->mutable_worker()->set_name(name);
    line.mutable_join()->mutable_worker()->set_id(id);
    line.mutable_join()->mutable_worker()->set_incarnation(incarnation);
    return line.SerializeAsString();
  };
  store_->set("log/0/0", join_line("a/b", -1, 1));
  store_->set("log/0/1", join_line(std::string(1 << 20, 'x'), -1, 2));
  const Joined first = join(a_, "a", -1, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->members.size(), 1u);
  ASSERT_TRUE(a_.follow(events_of_a_).ok());
  store_->set("log/0/3", join_line("line\nbreak", -1, 3));
  proto::LogLine death;
  death.mutable_death()->set_incarnation(first->self.incarnation);
  death.mutable_death()->set_by_name("\x1b[2J");
  store_->set("log/0/4", death.SerializeAsString());
  const Joined second = join(b_, "b", -1, 0);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->members.size(), 2u);
  EXPECT_THAT(events_of_a_.wait(1), ElementsAre("joined b"));
}

// The late worker may host the store, so it must not exit before the refused members have read the reason.
TEST_F(DirectoryTest, LateWorkerWaitsUntilTheRefusedHaveLeft) {
  proto::LogLine member, refusal, leave;
  member.mutable_join()->set_world_size(3);
  member.mutable_join()->mutable_worker()->set_name("b");
  member.mutable_join()->mutable_worker()->set_id(1);
  member.mutable_join()->mutable_worker()->set_incarnation(7);
  refusal.mutable_refusal()->set_incarnation(8);
  refusal.mutable_refusal()->set_reason("a test");
  refusal.mutable_refusal()->set_id(1);
  refusal.mutable_refusal()->set_time(absl::ToUnixSeconds(absl::Now()));
  store_->set("log/0/0", member.SerializeAsString());
  store_->set("log/0/1", refusal.SerializeAsString());
  auto late = std::async(std::launch::async, [&] { return join(a_, "a", 0, 3).status(); });
  // The line in which the late worker acknowledges the refusal.
  EXPECT_TRUE(store_->try_get("log/0/2", kTimeout).ok());
  EXPECT_EQ(late.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  leave.mutable_leave()->set_incarnation(7);
  store_->set("log/0/3", leave.SerializeAsString());
  const absl::Status status = late.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the group cannot form: a test"));
}

TEST_F(DirectoryTest, RefusedMemberThatDoesNotLeaveIsMissing) {
  proto::LogLine member, refusal;
  member.mutable_join()->set_world_size(2);
  member.mutable_join()->mutable_worker()->set_name("b");
  member.mutable_join()->mutable_worker()->set_id(1);
  member.mutable_join()->mutable_worker()->set_incarnation(7);
  refusal.mutable_refusal()->set_incarnation(8);
  refusal.mutable_refusal()->set_id(1);
  // A refusal that is so old is not reported to late workers.
  refusal.mutable_refusal()->set_time(1);
  store_->set("log/0/0", member.SerializeAsString());
  store_->set("log/0/1", refusal.SerializeAsString());
  const absl::Status status = join(a_, "a", 0, 2, absl::Milliseconds(50)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 of 2 did not join"));
}

TEST_F(DirectoryTest, RankOfALiveWorkerIsRefused) {
  ASSERT_TRUE(join(a_, "a", 0, 1).ok());
  const Joined taken = join(b_, "b", 0, 1);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(taken.status().message(), HasSubstr("rank 0 is taken by worker \"a\""));
}

TEST_F(DirectoryTest, NameOfALiveWorkerIsRefused) {
  EXPECT_FALSE(join(a_, "same", 0, 2, absl::ZeroDuration()).ok());
  const Joined taken = join(b_, "same", 1, 2);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(taken.status().message(), HasSubstr("\"same\" is taken by rank 0"));
}

TEST_F(DirectoryTest, OtherWorldSizeIsRefused) {
  EXPECT_FALSE(join(a_, "a", 0, 2, absl::ZeroDuration()).ok());
  const Joined other = join(b_, "b", 1, 3);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(other.status().message(), HasSubstr("worker \"b\" was started with 3, the job has 2"));
}

TEST_F(DirectoryTest, NameAndRankOfADeadWorkerAreTakenOver) {
  const Joined first = join(a_, "a", 0, 1);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(a_.follow(events_of_a_).ok());
  const Joined second = join(b_, "a", 0, 1, kTimeout, Life::kDead);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(second->self.incarnation, first->self.incarnation);
  ASSERT_EQ(second->gone.size(), 1u);
  EXPECT_EQ(second->gone[0].incarnation, first->self.incarnation);
  // The first worker is alive: it learns of its own death, and of no later event.
  EXPECT_THAT(events_of_a_.wait(1), ElementsAre("died a by a"));
}

TEST_F(DirectoryTest, NameOfAWorkerOfUnknownStateIsWaitedFor) {
  ASSERT_TRUE(join(a_, "a", 0, 0).ok());
  ASSERT_TRUE(a_.follow(events_of_a_).ok());
  const Joined unknown = join(b_, "a", -1, 0, absl::Milliseconds(50), Life::kUnknown);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(unknown.status().message(), HasSubstr("whether that worker is alive"));
  Joined waited;
  std::thread waiting([&] { waited = join(c_, "a", -1, 0, kTimeout, Life::kUnknown); });
  ASSERT_TRUE(a_.leave().ok());
  waiting.join();
  ASSERT_TRUE(waited.ok()) << waited.status();
}

TEST_F(DirectoryTest, OpenGroupAssignsIdsAndNeverOneTwice) {
  ASSERT_EQ(join(a_, "a", -1, 0)->self.id, 0);
  ASSERT_EQ(join(b_, "b", -1, 0)->self.id, 1);
  ASSERT_TRUE(b_.leave().ok());
  const Joined third = join(c_, "c", -1, 0);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->self.id, 2);
  ASSERT_EQ(third->members.size(), 2u);
}

TEST_F(DirectoryTest, FollowersReceiveEveryChangeInOrder) {
  ASSERT_TRUE(join(a_, "a", -1, 0).ok());
  ASSERT_TRUE(a_.follow(events_of_a_).ok());
  const Joined b = join(b_, "b", -1, 0);
  ASSERT_TRUE(b.ok());
  ASSERT_TRUE(b_.follow(events_of_b_).ok());
  const Joined c = join(c_, "c", -1, 0);
  ASSERT_TRUE(c.ok());
  b_.declare_dead(c->self, Directory::Knowledge::kProof, "declared dead by the test");
  b_.declare_dead(c->self, Directory::Knowledge::kProof, "twice");
  EXPECT_THAT(events_of_b_.wait(2), ElementsAre("joined c", "died c by b"));
  ASSERT_TRUE(b_.leave().ok());
  EXPECT_THAT(events_of_a_.wait(4), ElementsAre("joined b", "joined c", "died c by b", "left b"));
}

// A store that was away for long must not kill a worker that has answered long ago.
TEST_F(DirectoryTest, WorkerThatAnswersAgainIsNotDeclaredDeadForItsSilence) {
  ASSERT_TRUE(join(a_, "a", -1, 0).ok());
  ASSERT_TRUE(a_.follow(events_of_a_).ok());
  const auto cut_store = std::make_shared<testing::CutStore>(store_);
  Directory b(cut_store);
  ASSERT_TRUE(join(b, "b", -1, 0).ok());
  ASSERT_TRUE(b.follow(events_of_b_).ok());
  const Joined c = join(c_, "c", -1, 0);
  Directory d(store_), e(store_);
  const Joined other = join(d, "d", -1, 0);
  const Joined third = join(e, "e", -1, 0);
  ASSERT_TRUE(c.ok() && other.ok() && third.ok());
  EXPECT_EQ(events_of_b_.wait(3).size(), 3u);

  cut_store->cut();
  b.declare_dead(c->self, Directory::Knowledge::kSilence, "silent");
  b.declare_dead(other->self, Directory::Knowledge::kSilence, "silent");
  b.declare_dead(other->self, Directory::Knowledge::kProof, "its process has ended");
  b.answered(c->self.incarnation);
  b.answered(other->self.incarnation);
  cut_store->restore();
  b.declare_dead(third->self, Directory::Knowledge::kSilence, "silent");
  EXPECT_THAT(events_of_a_.wait(6),
              ElementsAre("joined b", "joined c", "joined d", "joined e", "died d by b", "died e by b"));
  // A later silence counts again.
  b.declare_dead(c->self, Directory::Knowledge::kSilence, "silent again");
  EXPECT_EQ(events_of_a_.wait(7).back(), "died c by b");
}

TEST_F(DirectoryTest, LeavingTwiceOrBeforeJoiningDoesNothing) {
  EXPECT_TRUE(a_.leave().ok());
  ASSERT_TRUE(join(b_, "b", 0, 1).ok());
  ASSERT_TRUE(b_.follow(events_of_b_).ok());
  EXPECT_TRUE(b_.leave().ok());
  EXPECT_TRUE(b_.leave().ok());
}

TEST_F(DirectoryTest, SuccessiveGroupsDoNotAccumulateKeys) {
  int64_t keys = 0;
  for (int group = 0; group < 5; ++group) {
    Directory one(store_), two(store_);
    ASSERT_EQ(join(one, "one", -1, 0)->self.id, 0);
    ASSERT_EQ(join(two, "two", -1, 0)->self.id, 1);
    ASSERT_TRUE(one.leave().ok());
    ASSERT_TRUE(two.leave().ok());
    if (group == 2) keys = *store_->try_num_keys();
  }
  EXPECT_EQ(*store_->try_num_keys(), keys);
}

TEST_F(DirectoryTest, HalfClosedLogIsReplaced) {
  ASSERT_TRUE(join(a_, "a", -1, 0).ok());
  ASSERT_TRUE(a_.leave().ok());
  // The same state as if the last member had died right after it closed the log.
  store_->set("generation", "");
  ASSERT_TRUE(join(b_, "a", -1, 0).ok());
  const Joined second = join(c_, "c", -1, 0);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->members.size(), 2u);
  EXPECT_EQ(store_->get("generation"), "1");
}

TEST_F(DirectoryTest, ForeignBytesInTheLogAreRefused) {
  store_->set("log/0/0", "what is this");
  const Joined joined = join(a_, "a", 0, 1);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(joined.status().message(), HasSubstr("log/0/0"));
}

}  // namespace
}  // namespace gradwire::rpc
