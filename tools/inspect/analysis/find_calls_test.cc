// Deadlocks and slow calls, in jobs that the tests write down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Stage = proto::CallSummary;

std::vector<Finding> found(const JobView& job, Finding::Kind kind, const Thresholds& thresholds = {}) {
  std::vector<Finding> of_kind;
  for (Finding& finding : analyze(job, thresholds)) {
    if (finding.kind == kind) of_kind.push_back(std::move(finding));
  }
  return of_kind;
}

constexpr absl::Duration kOld = absl::Seconds(10);

// f runs at a and calls g at b; g calls h on the serial object at a on which f runs.
JobBuilder nested_deadlock(absl::Duration age = kOld) {
  JobBuilder builder({"a", "b", "c"});
  const auto f = builder.call("c", "a", "A::f", age + absl::Seconds(2), Stage::NESTED);
  const auto g = builder.call("a", "b", "g", age + absl::Seconds(1), Stage::NESTED, f);
  const auto h = builder.call("b", "a", "A::h", age, Stage::QUEUED, g);
  builder.waits_for_turn("a", h, f);
  return builder;
}

TEST(FindDeadlocks, NestedCallsThatComeBackToASerialObject) {
  const JobBuilder builder = nested_deadlock();
  const std::vector<Finding> deadlocks = found(builder.job, Finding::Kind::kDeadlock);
  ASSERT_EQ(deadlocks.size(), 1u);
  EXPECT_EQ(deadlocks[0].title,
            "deadlock: \"A::f\" at \"a\" waits for \"g\" at \"b\" waits for \"A::h\" at \"a\" waits for "
            "\"A::f\" at \"a\"");
  EXPECT_THAT(deadlocks[0].culprits, UnorderedElementsAre(97, 98));
  EXPECT_EQ(deadlocks[0].age, kOld);
  EXPECT_THAT(
      deadlocks[0].details,
      ElementsAre("\"A::f\" at \"a\", called by \"c\": waits for nested calls, 12.0 s, deadline in 48.0 s",
                  "\"g\" at \"b\", called by \"a\": waits for nested calls, 11.0 s, deadline in 49.0 s",
                  "\"A::h\" at \"a\", called by \"b\": queued, 10.0 s, deadline in 50.0 s",
                  "a deadline ends it in 48.0 s"));
}

TEST(FindDeadlocks, TwoCallsThatHoldObjectsOfOneAnother) {
  JobBuilder builder({"a", "b", "c"});
  const auto x = builder.call("c", "a", "A::x", kOld, Stage::NESTED);
  const auto y = builder.call("c", "b", "B::y", kOld, Stage::NESTED);
  const auto to_b = builder.call("a", "b", "B::z", kOld, Stage::QUEUED, x);
  const auto to_a = builder.call("b", "a", "A::w", kOld, Stage::QUEUED, y);
  builder.waits_for_turn("b", to_b, y);
  builder.waits_for_turn("a", to_a, x);
  const std::vector<Finding> deadlocks = found(builder.job, Finding::Kind::kDeadlock);
  ASSERT_EQ(deadlocks.size(), 1u);
  EXPECT_EQ(deadlocks[0].details.size(), 5u);
}

TEST(FindDeadlocks, CallsThatAreYoungOrCanGoOnAreNone) {
  EXPECT_THAT(found(nested_deadlock(absl::Milliseconds(500)).job, Finding::Kind::kDeadlock), IsEmpty());
  // A long queue behind a call that runs.
  JobBuilder queue({"a", "b"});
  const auto running = queue.call("b", "a", "A::f", kOld);
  for (int i = 0; i < 3; ++i) {
    queue.waits_for_turn("a", queue.call("b", "a", "A::f", kOld, Stage::QUEUED), running);
  }
  EXPECT_THAT(found(queue.job, Finding::Kind::kDeadlock), IsEmpty());
  // The holder has ended before the other worker was read: it is in no list.
  JobBuilder ended({"a", "b"});
  const auto waiter = ended.call("b", "a", "A::f", kOld, Stage::QUEUED);
  ended.waits_for_turn("a", waiter, {98, 77});
  EXPECT_THAT(found(ended.job, Finding::Kind::kDeadlock), IsEmpty());
}

// a's window to b is full of calls whose handlers wait for calls of b to a, whose handlers wait for room in
// that window.
TEST(FindDeadlocks, FullWindowsInACycle) {
  for (const bool one_ends : {false, true}) {
    JobBuilder builder({"a", "b"});
    const auto outer = builder.call("a", "b", "outer", kOld, Stage::NESTED);
    const auto back = builder.call("b", "a", "back", kOld, Stage::NESTED, outer);
    builder.call_without_callee("a", "b", "inner", kOld, Stage::WAITING_FOR_CREDIT, back);
    // Another call in the window that runs, and makes room when it ends.
    if (one_ends) builder.call("a", "b", "other", kOld, Stage::RUNNING);
    EXPECT_EQ(found(builder.job, Finding::Kind::kDeadlock).size(), one_ends ? 0u : 1u);
  }
}

TEST(FindDeadlocks, PassWhoseHookCallsBackToAnObjectThatWaitsForThePass) {
  JobBuilder builder({"a", "b"});
  const auto train = builder.call("b", "a", "Trainer::step", kOld, Stage::NESTED);
  proto::PassSummary& root = *builder.worker("a").state.mutable_autograd()->add_passes();
  root.set_root(97);
  root.set_number(5);
  root.set_age_us(absl::ToInt64Microseconds(kOld));
  root.set_left_us(-1);
  root.add_waits_for(98);
  root.mutable_parent()->set_kind(proto::CallOrigin::CALL);
  root.mutable_parent()->set_incarnation(train.caller);
  root.mutable_parent()->set_number(train.number);
  proto::PassSummary& part = *builder.worker("b").state.mutable_autograd()->add_passes();
  part = root;
  part.clear_parent();
  part.clear_waits_for();
  const auto log = builder.call("b", "a", "Trainer::log", kOld, Stage::QUEUED);
  proto::CallOrigin& origin = *builder.worker("b")
                                   .state.mutable_pending(builder.worker("b").state.pending_size() - 1)
                                   ->mutable_parent();
  origin.set_kind(proto::CallOrigin::PASS);
  origin.set_incarnation(97);
  origin.set_number(5);
  builder.waits_for_turn("a", log, train);
  const std::vector<Finding> deadlocks = found(builder.job, Finding::Kind::kDeadlock);
  ASSERT_EQ(deadlocks.size(), 1u);
  EXPECT_THAT(deadlocks[0].title,
              AllOf(HasSubstr("a backward pass at \"a\" waits for a backward pass at \"b\""),
                    HasSubstr("waits for \"Trainer::log\" at \"a\"")));
}

TEST(FindDeadlocks, ChainThatComesBackAndRunsWithoutProgressIsPossiblyOne) {
  JobBuilder builder({"a", "b", "c"});
  const auto f = builder.call("c", "a", "f", kOld, Stage::NESTED);
  const auto g = builder.call("a", "b", "g", kOld, Stage::NESTED, f);
  builder.call("b", "a", "h", kOld, Stage::RUNNING, g);
  EXPECT_THAT(found(builder.job, Finding::Kind::kDeadlock), IsEmpty());
  const std::vector<Finding> reentries = found(builder.job, Finding::Kind::kReentry);
  ASSERT_EQ(reentries.size(), 1u);
  EXPECT_THAT(reentries[0].title,
              AllOf(HasSubstr("\"h\" at \"a\""), HasSubstr("\"f\" at \"a\" waits for it")));
}

TEST(FindSlowCalls, NamesTheEndOfTheChainAndItsCallers) {
  JobBuilder builder({"a", "b", "c"});
  const auto push = builder.call("a", "b", "push", kOld + absl::Seconds(1), Stage::NESTED);
  builder.call("b", "c", "apply", kOld, Stage::RUNNING, push);
  builder.call("a", "c", "quick", absl::Seconds(1));
  const std::vector<Finding> slow = found(builder.job, Finding::Kind::kSlowCall);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].title, "slow call: \"apply\" at \"c\": running for 10.0 s");
  EXPECT_THAT(slow[0].culprits, ElementsAre(99));
  EXPECT_THAT(slow[0].details,
              ElementsAre(HasSubstr("\"push\" at \"b\", called by \"a\": waits for nested calls"),
                          HasSubstr("  \"apply\" at \"c\", called by \"b\": running")));
}

TEST(FindSlowCalls, CallToAWorkerThatDoesNotAnswer) {
  JobBuilder builder({"a", "b"});
  builder.call_without_callee("a", "b", "f", kOld, Stage::SENT);
  builder.worker("b").status = absl::DeadlineExceededError("the worker does not answer");
  const std::vector<Finding> slow = found(builder.job, Finding::Kind::kSlowCall);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_THAT(slow[0].title, HasSubstr("\"f\" at \"b\" was sent 10.0 s ago, and \"b\" does not answer"));
  EXPECT_THAT(slow[0].culprits, ElementsAre(98));
}

TEST(FindSlowCalls, CallsThatWaitForAThreadAreOneFinding) {
  JobBuilder builder({"a", "b"});
  for (int i = 0; i < 4; ++i)
    builder.call("a", "b", absl::StrCat("f", i), kOld + absl::Seconds(i), Stage::QUEUED);
  const std::vector<Finding> queued = found(builder.job, Finding::Kind::kQueued);
  ASSERT_EQ(queued.size(), 1u);
  EXPECT_THAT(queued[0].title, HasSubstr("4 calls wait for a thread of \"b\", the oldest for 13.0 s"));
}

TEST(FindSlowCalls, AtMostSoManyOfEachKind) {
  JobBuilder builder({"a", "b"});
  for (int i = 0; i < 30; ++i) builder.call("a", "b", "f", kOld + absl::Seconds(i));
  const std::vector<Finding> slow = found(builder.job, Finding::Kind::kSlowCall);
  EXPECT_EQ(slow.size(), Thresholds().most);
  EXPECT_EQ(slow[0].age, kOld + absl::Seconds(29));
}

TEST(WaitGraph, ParentsInACycleAreFollowedOnce) {
  // Two calls, each of which says that the other one has made it. Only a hostile worker reports this.
  JobBuilder builder({"a", "b"});
  builder.call("a", "b", "f", kOld, Stage::RUNNING, {98, 1});
  builder.call("b", "a", "g", kOld, Stage::RUNNING, {97, 1});
  const WaitGraph graph(builder.job);
  for (const auto& [key, node] : graph.nodes()) EXPECT_EQ(WaitGraph::chain_to(node).size(), 2u);
  EXPECT_EQ(graph.deadlocks(absl::Seconds(1)).size(), 1u);
  EXPECT_FALSE(analyze(builder.job, {}).empty());
}

TEST(WaitGraph, CallThatIsItsOwnParentWaitsForNothing) {
  JobBuilder builder({"a", "b"});
  builder.call("a", "b", "f", kOld, Stage::RUNNING, {97, 1});
  EXPECT_THAT(WaitGraph(builder.job).deadlocks(absl::Seconds(1)), IsEmpty());
}

}  // namespace
}  // namespace gradwire::inspect
