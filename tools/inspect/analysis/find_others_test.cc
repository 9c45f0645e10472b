// Workers, links, collectives and references, in jobs that the tests write down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(FindWorkers, NamesThoseThatDoNotAnswerAndThoseThatAreDead) {
  JobBuilder builder({"a", "b", "c", "d"});
  builder.worker("b").status = absl::DeadlineExceededError("the worker does not answer");
  builder.peer("a", "b").set_state(proto::PeerState::SUSPECT);
  builder.worker("c").standing = WorkerView::Standing::kDead;
  builder.worker("c").reason = "its process has ended";
  builder.worker("d").standing = WorkerView::Standing::kLeft;
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kUnresponsive);
  EXPECT_THAT(findings[0].title, HasSubstr("worker \"b\" does not answer"));
  EXPECT_THAT(findings[0].details, ElementsAre("suspected by \"a\""));
  EXPECT_THAT(findings[0].culprits, ElementsAre(98));
  EXPECT_EQ(findings[1].kind, Finding::Kind::kLost);
  EXPECT_THAT(findings[1].title, HasSubstr("worker \"c\" is dead: its process has ended"));
}

void offer(WorkerView& worker, const std::vector<std::string>& transports) {
  for (const std::string& transport : transports) worker.record.add_addresses()->set_transport(transport);
}

proto::PeerState& connected(JobBuilder& builder, const std::string& from, const std::string& to,
                            const std::string& transport) {
  proto::PeerState& peer = builder.peer(from, to);
  peer.set_same_host(true);
  peer.add_links()->set_transport(transport);
  peer.mutable_links(0)->set_in_use(true);
  return peer;
}

TEST(FindLinks, TcpWithinAHostNamesTheWorkerThatDoesNotOfferShm) {
  JobBuilder builder({"a", "b"});
  offer(builder.worker("a"), {"shm", "tcp"});
  offer(builder.worker("b"), {"tcp"});
  connected(builder, "a", "b", "tcp");
  connected(builder, "b", "a", "tcp");
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kSlowTransport);
  EXPECT_THAT(findings[0].title, HasSubstr("\"b\" does not offer shm"));
  EXPECT_THAT(findings[0].culprits, ElementsAre(98));
}

TEST(FindLinks, ShmThatFailedIsNamedWithItsReason) {
  JobBuilder builder({"a", "b"});
  for (const char* name : {"a", "b"}) offer(builder.worker(name), {"shm", "tcp"});
  proto::GivenUpTransport& given_up = *connected(builder, "a", "b", "tcp").add_given_up();
  given_up.set_transport("shm");
  given_up.set_reason("no \x1b[31mspace");
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].title, HasSubstr("shm failed: no \\x1b[31mspace"));
}

TEST(FindLinks, OtherHostsAndJobsWithoutShmAreFine) {
  JobBuilder builder({"a", "b", "c"});
  for (const char* name : {"a", "b", "c"}) offer(builder.worker(name), {"tcp"});
  connected(builder, "a", "b", "tcp");
  connected(builder, "a", "c", "tcp").set_same_host(false);
  EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
}

TEST(FindLinks, FullWindowNamesTheWorkerThatDoesNotAnswer) {
  JobBuilder builder({"a", "b"});
  proto::PeerState& peer = builder.peer("a", "b");
  peer.set_window_calls(16);
  peer.set_window_calls_limit(16);
  peer.set_window_waiting(3);
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kFullWindow);
  EXPECT_THAT(findings[0].title, HasSubstr("3 calls of \"a\" wait until \"b\" has answered others"));
  EXPECT_THAT(findings[0].culprits, ElementsAre(98));
}

void collective(WorkerView& worker, int rank, int size, int64_t sequence, absl::Duration age, bool open) {
  proto::ProcessGroupState& group = *worker.state.add_groups();
  group.set_title(absl::StrCat("group \"g \\\"x\", rank ", rank, " of ", size));
  proto::CollectiveState& last = *group.mutable_last();
  last.set_operation("all_reduce");
  last.set_sequence(sequence);
  last.set_state(open ? proto::CollectiveState::RUNNING : proto::CollectiveState::DONE);
  last.set_age_us(absl::ToInt64Microseconds(age));
  if (open) *group.mutable_oldest() = last;
}

TEST(FindLateRanks, TheRankThatHasNotCalledIsNamed) {
  JobBuilder builder({"a", "b", "c"});
  collective(builder.worker("a"), 0, 3, 7, absl::Seconds(4), true);
  collective(builder.worker("b"), 1, 3, 6, absl::Seconds(5), false);
  collective(builder.worker("c"), 2, 3, 7, absl::Seconds(3), true);
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kLateRank);
  EXPECT_THAT(findings[0].title, AllOf(HasSubstr("rank 1 (\"b\") has not called all_reduce #7"),
                                       HasSubstr("have waited 4.0 s")));
  EXPECT_THAT(findings[0].culprits, ElementsAre(98));
  EXPECT_EQ(findings[0].details.size(), 3u);
}

TEST(FindLateRanks, ShortWaitsAndCollectivesThatAllHaveCalled) {
  JobBuilder quick({"a", "b"});
  collective(quick.worker("a"), 0, 2, 7, absl::Seconds(1), true);
  collective(quick.worker("b"), 1, 2, 6, absl::Seconds(1), false);
  EXPECT_THAT(analyze(quick.job, {}), IsEmpty());
  JobBuilder slow({"a", "b"});
  collective(slow.worker("a"), 0, 2, 7, absl::Seconds(9), true);
  collective(slow.worker("b"), 1, 2, 7, absl::Seconds(8), true);
  const std::vector<Finding> findings = analyze(slow.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].title, HasSubstr("all ranks have called all_reduce #7"));
  EXPECT_THAT(findings[0].culprits, IsEmpty());
}

TEST(FindLateRanks, ARankWhoseWorkerIsNotInTheAnswersIsCounted) {
  JobBuilder builder({"a", "b"});
  collective(builder.worker("a"), 0, 2, 7, absl::Seconds(9), true);
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].title, HasSubstr("1 of its ranks are not in the answers"));
}

proto::RRefState& rrefs(JobBuilder& builder, uint64_t holder, uint64_t count, absl::Duration age) {
  proto::RRefState& group = *builder.worker("a").state.add_rrefs();
  group.set_type("Tensor");
  group.set_holder(holder);
  group.set_count(count);
  group.set_oldest_us(absl::ToInt64Microseconds(age));
  return group;
}

TEST(FindLeaks, ManyOldReferencesNameTheirHolder) {
  JobBuilder builder({"a", "b"});
  rrefs(builder, 98, 5'000, absl::Seconds(100));
  rrefs(builder, 98, 5'000, absl::Seconds(10));
  rrefs(builder, 98, 10, absl::Seconds(1'000));
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kLeak);
  EXPECT_EQ(
      findings[0].title,
      "RRef leak: 5000 RRefs of type \"Tensor\" at \"a\" are held by \"b\"; the oldest is 1 min 40 s old");
  EXPECT_THAT(findings[0].culprits, ElementsAre(98));
}

TEST(FindLeaks, ReferencesOfAHolderThatIsGone) {
  JobBuilder builder({"a", "b"});
  rrefs(builder, 98, 1, absl::Seconds(40)).set_holder_lost(true);
  builder.worker("b").standing = WorkerView::Standing::kLeft;
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].title, HasSubstr("held for \"b\", which is gone"));
}

// The loss is confirmed soon.
TEST(FindLeaks, YoungReferencesOfAHolderThatIsGoneAreNone) {
  JobBuilder builder({"a", "b"});
  rrefs(builder, 98, 1, absl::Seconds(1)).set_holder_lost(true);
  builder.worker("b").standing = WorkerView::Standing::kLeft;
  EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
}

TEST(Text, IsShortAndHarmless) {
  EXPECT_EQ(text_of(absl::Milliseconds(999)), "999 ms");
  EXPECT_EQ(text_of(absl::Seconds(59)), "59.0 s");
  EXPECT_EQ(text_of(absl::Seconds(200)), "3 min 20 s");
  EXPECT_EQ(text_of(absl::Hours(25)), "25 h 0 min");
  EXPECT_EQ(text_of(-absl::Seconds(1)), "0 ms");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(3.5 * 1024 * 1024), "3.5 MiB");
  EXPECT_EQ(printable("a\x1b[2J\n\xff"), "a\\x1b[2J\\n\\xff");
}

}  // namespace
}  // namespace gradwire::inspect
