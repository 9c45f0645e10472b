#include "gradwire/tools/inspect/web/history.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"

namespace gradwire::inspect {
namespace {

absl::Time at(int64_t seconds) { return absl::UnixEpoch() + absl::Seconds(1'000'000 + seconds); }

// A job of the given workers at a time.
JobBuilder job(int64_t seconds, const std::vector<std::string>& names, const std::string& group = "round_0") {
  JobBuilder builder(names);
  builder.job.group = group;
  builder.job.time = at(seconds);
  for (WorkerView& worker : builder.job.workers) worker.state.set_uptime_us(seconds * 1'000'000);
  return builder;
}

void bucket(JobBuilder& builder, const std::string& worker, int bucket, int64_t calls) {
  proto::NamedNumber& number = *builder.worker(worker).state.add_statistics();
  number.set_name(absl::StrCat("call_bucket_", bucket));
  number.set_value(calls);
}

void add(History& history, const JobBuilder& builder) { history.add({.job = builder.job}); }

TEST(History, LatenciesAreThoseBetweenTwoReadings) {
  History history;
  JobBuilder first = job(10, {"a", "b"});
  bucket(first, "a", 20, 1'000);
  add(history, first);
  EXPECT_TRUE(history.samples().empty());
  JobBuilder second = job(11, {"a", "b"});
  bucket(second, "a", 20, 1'000);
  bucket(second, "a", 10, 96);
  bucket(second, "b", 10, 2);
  bucket(second, "b", 14, 2);
  add(history, second);
  ASSERT_EQ(history.samples().size(), 1u);
  const History::Sample& sample = history.samples().front();
  EXPECT_EQ(sample.calls, 100u);
  EXPECT_EQ(sample.time, at(11));
  // The slow calls before the first reading do not count. A bucket ends at 2^N microseconds.
  EXPECT_GT(sample.p50, absl::Microseconds(512));
  EXPECT_LE(sample.p50, absl::Microseconds(1'024));
  EXPECT_GT(sample.p99, absl::Microseconds(8'192));
  EXPECT_LE(sample.p99, absl::Microseconds(16'384));
  // Nothing has ended since.
  second.job.time = at(12);
  add(history, second);
  EXPECT_EQ(history.samples().back().calls, 0u);
}

TEST(History, HostileCountersAreLeftOut) {
  History history;
  JobBuilder builder = job(10, {"a"});
  add(history, builder);
  for (const char* name : {"call_bucket_", "call_bucket_-1", "call_bucket_28", "call_bucket_x"}) {
    proto::NamedNumber& number = *builder.worker("a").state.add_statistics();
    number.set_name(name);
    number.set_value(5);
  }
  bucket(builder, "a", 3, -7);
  add(history, builder);
  EXPECT_EQ(history.samples().back().calls, 0u);
}

TEST(History, LivesEndAsTheGroupSays) {
  History history;
  add(history, job(10, {"a", "b", "c"}));
  JobBuilder second = job(20, {"a", "b", "c"});
  second.worker("b").standing = WorkerView::Standing::kDead;
  second.worker("c").standing = WorkerView::Standing::kLeft;
  add(history, second);
  const std::vector<History::Life> lives = history.lives();
  ASSERT_EQ(lives.size(), 3u);
  EXPECT_EQ(lives[0].began, at(0));
  EXPECT_EQ(lives[0].ended, absl::InfiniteFuture());
  EXPECT_EQ(lives[1].how, "dead");
  EXPECT_EQ(lives[1].ended, at(20));
  EXPECT_EQ(lives[2].how, "left");
  EXPECT_TRUE(history.restarts().empty());
}

TEST(History, NewGroupIsARestart) {
  History history;
  add(history, job(10, {"a", "b"}, "round_0"));
  // The same names with other incarnations.
  JobBuilder second = job(30, {"a", "b"}, "round_1");
  for (WorkerView& worker : second.job.workers) {
    worker.record.set_incarnation(worker.record.incarnation() + 1'000);
    worker.state.set_uptime_us(2'000'000);
  }
  add(history, second);
  ASSERT_EQ(history.restarts().size(), 1u);
  // The reading at 30 s finds workers that began at 28 s.
  EXPECT_EQ(history.restarts().front(), at(28));
  const std::vector<History::Life> lives = history.lives();
  ASSERT_EQ(lives.size(), 4u);
  EXPECT_EQ(lives[0].how, "restart");
  EXPECT_EQ(lives[0].ended, at(28));
  EXPECT_EQ(lives[2].name, "a");
  EXPECT_EQ(lives[2].began, at(28));
}

TEST(History, PassesAreRememberedAfterTheirEnd) {
  History history;
  JobBuilder builder = job(10, {"a", "b"});
  for (const char* name : {"a", "b"}) {
    proto::PassSummary& part = *builder.worker(name).state.mutable_autograd()->add_passes();
    part.set_root(JobBuilder::id("a"));
    part.set_number(7);
    part.set_age_us(name[0] == 'a' ? 3'000'000 : 2'000'000);
  }
  add(history, builder);
  ASSERT_EQ(history.passes().size(), 1u);
  EXPECT_TRUE(history.passes()[0].in_progress);
  add(history, job(11, {"a", "b"}));
  const History::Pass pass = history.passes().at(0);
  EXPECT_FALSE(pass.in_progress);
  EXPECT_EQ(pass.root, "a");
  EXPECT_EQ(pass.number, 7u);
  EXPECT_EQ(pass.began, at(7));
  EXPECT_EQ(pass.took, absl::Seconds(3));
  EXPECT_EQ(pass.workers, (std::vector<std::string>{"a", "b"}));
}

TEST(History, SizeIsBounded) {
  History history;
  for (int i = 0; i < 400; ++i) {
    JobBuilder builder = job(i, {"a"}, absl::StrCat("round_", i));
    builder.worker("a").record.set_incarnation(1'000u + static_cast<uint64_t>(i));
    proto::PassSummary& pass = *builder.worker("a").state.mutable_autograd()->add_passes();
    pass.set_number(static_cast<uint64_t>(i));
    add(history, builder);
  }
  EXPECT_EQ(history.samples().size(), History::kMostSamples);
  EXPECT_EQ(history.lives().size(), History::kMostLives);
  EXPECT_EQ(history.restarts().size(), History::kMostRestarts);
  EXPECT_EQ(history.passes().size(), History::kMostPasses);
  // The newest ones are kept.
  EXPECT_EQ(history.passes().back().number, 399u);
  EXPECT_EQ(history.lives().back().ended, absl::InfiniteFuture());
}

}  // namespace
}  // namespace gradwire::inspect
