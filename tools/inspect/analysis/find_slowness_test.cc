// Hot objects, slow stores, wrong clocks, exhausted arenas, unused results and paused workers, in jobs that
// the tests write down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Stage = proto::CallSummary;

std::vector<Finding> slowness_found(const JobView& job, Finding::Kind kind,
                                    const Thresholds& thresholds = {}) {
  std::vector<Finding> of_kind;
  for (Finding& finding : analyze(job, thresholds)) {
    if (finding.kind == kind) of_kind.push_back(std::move(finding));
  }
  return of_kind;
}

// `waiters` calls of Table::push at "server" that wait behind one that runs.
JobBuilder queue_behind(int waiters, absl::Duration age) {
  JobBuilder builder({"a", "b", "server"});
  const auto holder = builder.call("b", "server", "Table::pull", absl::Milliseconds(3));
  for (int i = 0; i < waiters; ++i) {
    builder.waits_for_turn("server", builder.call("a", "server", "Table::push", age, Stage::QUEUED), holder);
  }
  for (proto::CallSummary& call : *builder.worker("server").state.mutable_served()) {
    if (call.has_waits_for()) call.set_waits_for_callee("Table::pull");
  }
  return builder;
}

TEST(FindHotObjects, AQueueNamesTheClassAndTheMethodThatRuns) {
  const std::vector<Finding> hot =
      slowness_found(queue_behind(8, absl::Seconds(2)).job, Finding::Kind::kHotObject);
  ASSERT_THAT(hot, SizeIs(1));
  EXPECT_EQ(hot[0].title,
            "hot object: 8 calls wait for a turn on an object of class \"Table\" at \"server\", where "
            "\"Table::pull\" runs; the oldest waits for 2.0 s");
  EXPECT_THAT(hot[0].details, ElementsAre("8 of \"Table::push\", called by \"a\""));
  EXPECT_THAT(hot[0].culprits, ElementsAre(JobBuilder::id("server")));
  EXPECT_THAT(hot[0].advice, HasSubstr("GRADWIRE_RPC_CLASS"));
}

TEST(FindHotObjects, ShortAndYoungQueuesAreNone) {
  EXPECT_THAT(slowness_found(queue_behind(7, absl::Seconds(2)).job, Finding::Kind::kHotObject), IsEmpty());
  EXPECT_THAT(slowness_found(queue_behind(8, absl::Milliseconds(900)).job, Finding::Kind::kHotObject),
              IsEmpty());
  EXPECT_THAT(
      slowness_found(queue_behind(2, absl::Seconds(2)).job, Finding::Kind::kHotObject, {.hot_queue = 2}),
      SizeIs(1));
}

TEST(FindHotObjects, AQueueBehindADeadlockBelongsToTheDeadlock) {
  JobBuilder builder({"a", "b"});
  const auto outer = builder.call("b", "a", "A::f", absl::Seconds(9), Stage::NESTED);
  builder.waits_for_turn("a", builder.call("a", "a", "A::g", absl::Seconds(9), Stage::QUEUED, outer), outer);
  for (int i = 0; i < 20; ++i) {
    builder.waits_for_turn("a", builder.call("b", "a", "A::f", absl::Seconds(8), Stage::QUEUED), outer);
  }
  EXPECT_THAT(slowness_found(builder.job, Finding::Kind::kDeadlock), SizeIs(1));
  EXPECT_THAT(slowness_found(builder.job, Finding::Kind::kHotObject), IsEmpty());
}

proto::StoreState& store_of(JobBuilder& builder, const std::string& worker, uint32_t calls,
                            absl::Duration mean) {
  proto::StoreState& store = *builder.worker(worker).state.mutable_store();
  store.set_description("TcpStore at host:1");
  store.set_calls(calls);
  store.set_mean_us(absl::ToInt64Microseconds(mean));
  store.set_slowest_us(absl::ToInt64Microseconds(2 * mean));
  store.set_slowest_operation("set");
  store.set_open_us(-1);
  return store;
}

TEST(FindSlowStores, OneWorkerThatFindsItSlow) {
  JobBuilder builder({"a", "b"});
  store_of(builder, "a", 30, absl::Milliseconds(300));
  store_of(builder, "b", 30, absl::Milliseconds(1));
  const std::vector<Finding> slow = slowness_found(builder.job, Finding::Kind::kSlowStore);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].title,
            "slow store: a call takes 300 ms on average at \"a\", but not at the other workers; the store is "
            "TcpStore at host:1");
  EXPECT_THAT(slow[0].details,
              ElementsAre("\"a\": the last 30 calls took 300 ms on average, the slowest one, set, 600 ms",
                          HasSubstr("\"b\": the last 30 calls took 1 ms")));
  EXPECT_THAT(slow[0].culprits, ElementsAre(JobBuilder::id("a")));
}

TEST(FindSlowStores, AllWorkersAndCallsWithoutAnAnswer) {
  JobBuilder builder({"a", "b"});
  store_of(builder, "a", 30, absl::Milliseconds(300));
  proto::StoreState& hangs = store_of(builder, "b", 0, absl::ZeroDuration());
  hangs.set_open_us(7'000'000);
  hangs.set_open_operation("compare_set");
  const std::vector<Finding> slow = slowness_found(builder.job, Finding::Kind::kSlowStore);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(
      slow[0].title,
      "slow store: compare_set has had no answer for 7.0 s at \"a\", \"b\"; the store is TcpStore at host:1");
  EXPECT_EQ(slow[0].age, absl::Seconds(7));
}

TEST(FindSlowStores, FewCallsAndQuickOnesAreNone) {
  JobBuilder builder({"a", "b", "c"});
  store_of(builder, "a", 2, absl::Seconds(3));
  store_of(builder, "b", 30, absl::Milliseconds(199));
  EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
}

// The worker answers a question that takes `took`, with a clock that is `ahead` of the observer's.
void clock_of(JobBuilder& builder, const std::string& worker, absl::Duration ahead,
              absl::Duration took = absl::Milliseconds(10)) {
  WorkerView& view = builder.worker(worker);
  view.asked = absl::FromUnixSeconds(1'000'000);
  view.answered_at = view.asked + took;
  view.state.set_wall_us(absl::ToUnixMicros(view.asked + took / 2 + ahead));
  view.state.set_host("host-" + worker);
}

TEST(FindWrongClocks, TheClockThatDiffersFromTheMajority) {
  JobBuilder builder({"a", "b", "c"});
  clock_of(builder, "a", absl::Milliseconds(30));
  clock_of(builder, "b", -absl::Hours(1));
  clock_of(builder, "c", -absl::Milliseconds(30));
  const std::vector<Finding> wrong = slowness_found(builder.job, Finding::Kind::kWrongClock);
  ASSERT_THAT(wrong, SizeIs(1));
  EXPECT_THAT(wrong[0].title,
              HasSubstr("the wall clock of \"b\" on host \"host-b\" is 1 h 0 min behind the other"));
  EXPECT_THAT(wrong[0].details[0], HasSubstr("at most 6 ms"));
  EXPECT_THAT(wrong[0].culprits, ElementsAre(JobBuilder::id("b")));
}

TEST(FindWrongClocks, TheObserverDecidesBetweenTwoWorkers) {
  JobBuilder builder({"a", "b"});
  clock_of(builder, "a", absl::Seconds(90));
  clock_of(builder, "b", absl::ZeroDuration());
  const std::vector<Finding> wrong = slowness_found(builder.job, Finding::Kind::kWrongClock);
  ASSERT_THAT(wrong, SizeIs(1));
  EXPECT_THAT(wrong[0].title, HasSubstr("\"a\" on host \"host-a\" is 1 min 30 s ahead of"));
}

TEST(FindWrongClocks, WhenOnlyTheObserverIsWrongAndWhenNothingIsKnown) {
  JobBuilder builder({"a", "b", "c"});
  for (const char* name : {"a", "b", "c"}) clock_of(builder, name, absl::Hours(5));
  EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
  // An answer that took long says little about the clock.
  JobBuilder slow({"a"});
  clock_of(slow, "a", absl::Seconds(4), absl::Seconds(8));
  EXPECT_THAT(analyze(slow.job, {}), IsEmpty());
  // An earlier version does not report its clock.
  JobBuilder earlier({"a"});
  clock_of(earlier, "a", absl::ZeroDuration());
  earlier.worker("a").state.clear_wall_us();
  EXPECT_THAT(analyze(earlier.job, {}), IsEmpty());
}

proto::LinkState& full_arena(JobBuilder& builder, absl::Duration since) {
  proto::LinkState& link = *builder.peer("a", "b").add_links();
  link.set_transport("shm");
  link.set_no_room_bytes(3 << 20);
  link.set_no_room_us(absl::ToInt64Microseconds(since));
  return link;
}

TEST(FindLinks, AnExhaustedArenaNamesTheReceiver) {
  JobBuilder builder({"a", "b"});
  full_arena(builder, absl::Seconds(2));
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(
      findings[0].title,
      "exhausted arena: the shared memory from \"a\" to \"b\" has no room, so 3.0 MiB went in small parts, "
      "the last of them 2.0 s ago");
  EXPECT_THAT(findings[0].culprits, ElementsAre(JobBuilder::id("b")));
  JobBuilder later({"a", "b"});
  full_arena(later, absl::Seconds(11));
  EXPECT_THAT(analyze(later.job, {}), IsEmpty());
}

TEST(FindWorkers, APausedProcessIsNamed) {
  JobBuilder builder({"a", "b"});
  builder.worker("b").status = absl::DeadlineExceededError("the worker does not answer");
  builder.worker("b").stopped_pid = 4021;
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].kind, Finding::Kind::kUnresponsive);
  EXPECT_EQ(findings[0].title, "paused worker: \"b\" does not answer, because its process 4021 is stopped");
  EXPECT_THAT(findings[0].advice, HasSubstr("kill -CONT 4021"));
}

// A pass of "a" in the fast mode, in which "b" has sent message 3 to "a" and message 4 to "c".
JobBuilder fast_pass(absl::Duration age) {
  JobBuilder builder({"a", "b", "c"});
  for (const char* name : {"a", "b", "c"}) {
    proto::AutogradState& state = *builder.worker(name).state.mutable_autograd();
    proto::PassSummary& pass = *state.add_passes();
    state.set_passes_total(1);
    pass.set_root(JobBuilder::id("a"));
    pass.set_number(1);
    pass.set_age_us(absl::ToInt64Microseconds(age));
    pass.set_left_us(-1);
    pass.set_running(true);
    pass.set_fast(true);
    pass.set_reached_all(true);
  }
  proto::PassSummary& sender = *builder.worker("b").state.mutable_autograd()->mutable_passes(0);
  for (const auto& [peer, message] : {std::pair("a", 3), std::pair("c", 4)}) {
    proto::GraphMessage& awaited = *sender.add_awaited();
    awaited.set_peer(JobBuilder::id(peer));
    awaited.set_message(message);
    proto::GraphMessage& reached =
        *builder.worker(peer).state.mutable_autograd()->mutable_passes(0)->add_reached();
    reached.set_peer(JobBuilder::id("b"));
    reached.set_message(message);
  }
  sender.mutable_awaited(0)->set_callee("extra");
  return builder;
}

TEST(FindUnusedResults, TheReceiverWhoseGraphDoesNotReachTheMessage) {
  JobBuilder builder = fast_pass(absl::Seconds(12));
  EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
  builder.worker("a").state.mutable_autograd()->mutable_passes(0)->clear_reached();
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].kind, Finding::Kind::kUnusedResult);
  EXPECT_EQ(
      findings[0].title,
      "unused result: the loss does not use the result of \"extra\" that \"a\" has received from \"b\", and "
      "a backward pass of \"a\" with BackwardMode::kFast has waited for its gradient for 12.0 s");
  EXPECT_THAT(findings[0].details, ElementsAre("1 message of \"b\" to \"a\" without gradients",
                                               "the pass has no deadline: it never ends"));
  EXPECT_THAT(findings[0].culprits, ElementsAre(JobBuilder::id("a")));
}

TEST(FindUnusedResults, TheReceiverMayHaveNoPartInThePass) {
  JobBuilder builder = fast_pass(absl::Seconds(12));
  proto::AutogradState& state = *builder.worker("c").state.mutable_autograd();
  state.clear_passes();
  // It has more passes than it reports.
  EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
  state.set_passes_total(0);
  const std::vector<Finding> findings = analyze(builder.job, {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].title, HasSubstr("does not use a tensor that \"c\" has received from \"b\""));
  // Its part begins with the first gradients, which a worker that is busy may still send.
  builder.worker("a").state.mutable_autograd()->mutable_passes(0)->set_busy(true);
  EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
}

TEST(FindUnusedResults, YoungPassesAndUnknownGraphsAreNone) {
  JobBuilder young = fast_pass(absl::Seconds(4));
  young.worker("a").state.mutable_autograd()->mutable_passes(0)->clear_reached();
  EXPECT_THAT(analyze(young.job, {}), IsEmpty());
  for (const bool runs : {false, true}) {
    JobBuilder builder = fast_pass(absl::Seconds(12));
    proto::PassSummary& part = *builder.worker("a").state.mutable_autograd()->mutable_passes(0);
    part.clear_reached();
    part.set_running(runs);
    part.set_reached_all(!runs);
    EXPECT_THAT(analyze(builder.job, {}), IsEmpty());
  }
}

}  // namespace
}  // namespace gradwire::inspect
