// The flight records of agents of one process, as an observer reads them over real sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/collectives/flight/flight_recorder.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/inspect/job_directory.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/inspect/observer.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);

int64_t early(int64_t value) { return value; }
GRADWIRE_RPC(early)
int64_t late(int64_t value) { return value; }
GRADWIRE_RPC(late)
Promise<int64_t>& gate() {
  static auto* promise = new Promise<int64_t>;
  return *promise;
}
Future<int64_t> wait_in_period() { return gate().future(); }
GRADWIRE_RPC(wait_in_period)

class FlightQuestionTest : public ::testing::Test {
 protected:
  RpcBackendOptions with_records(uint32_t records) const {
    RpcBackendOptions options;
    options.store = store_;
    options.flight.records = records;
    return options;
  }
  // Asks the first worker until it has time to answer.
  proto::AgentState ask(const proto::FlightQuestion& question) {
    proto::AgentState state;
    const std::vector<JobDirectory::Entry> entries = JobDirectory(store_).read(kAnswerTimeout).value();
    Observer::Question asked{.worker = entries.at(0).record, .request = {}};
    *asked.request.mutable_flight() = question;
    EXPECT_TRUE(eventually([&] {
      // It ends here: the group checks at its end that no observer is left.
      const std::unique_ptr<Observer> observer = Observer::open({}).value();
      Observer::Answer answer = observer->ask_each({asked}, kAnswerTimeout).at(0);
      if (absl::IsResourceExhausted(answer.status())) return false;
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (answer.ok()) state = *std::move(answer);
      return true;
    }));
    return state;
  }

  const std::shared_ptr<store::HashStore> store_ = std::make_shared<store::HashStore>();
};

TEST_F(FlightQuestionTest, CallsOfThePeriodComeWithTheHeaderAndTheMembers) {
  testing::Group group(2, with_records(1000));
  (void)group[0]->rpc_sync<&early>("worker1", 1);
  proto::FlightQuestion begin;
  begin.set_from(~uint64_t{0});
  const proto::AgentState before = ask(begin);
  EXPECT_EQ(before.flight().lines(), "");
  EXPECT_GT(before.flight().recorded(), 0u);
  EXPECT_EQ(before.flight().next(), 0u);
  (void)group[0]->rpc_sync<&late>("worker1", 1);

  proto::FlightQuestion question;
  question.set_since_us(before.read_at_us());
  question.set_begun(before.flight().recorded());
  const proto::AgentState after = ask(question);
  EXPECT_EQ(after.name(), "worker0");
  EXPECT_EQ(after.pid(), getpid());
  EXPECT_EQ(after.flight().next(), 0u);
  EXPECT_EQ(after.flight().missing(), 0u);
  EXPECT_THAT(after.flight().lines(),
              AllOf(StartsWith(R"({"type":"flight",)"), HasSubstr(R"("name":"worker1")"),
                    HasSubstr("::late\""), Not(HasSubstr("::early\""))));
  // The state is not read for it.
  EXPECT_EQ(after.peers_size(), 0);
}

TEST_F(FlightQuestionTest, CallThatIsOpenOrEndsInThePeriodBelongsToIt) {
  testing::Group group(2, with_records(1000));
  gate() = Promise<int64_t>();
  const Future<int64_t> call = group[0]->rpc_async<&wait_in_period>("worker1");
  proto::FlightQuestion begin;
  begin.set_from(~uint64_t{0});
  const proto::AgentState before = ask(begin);
  proto::FlightQuestion question;
  // Later than the beginning of the call.
  question.set_since_us(before.read_at_us() + 1);
  question.set_begun(before.flight().recorded());
  EXPECT_THAT(ask(question).flight().lines(), HasSubstr("::wait_in_period\""));
  gate().set_value(1);
  EXPECT_EQ(call.wait(), 1);
  EXPECT_THAT(ask(question).flight().lines(), HasSubstr("::wait_in_period\""));
}

TEST_F(FlightQuestionTest, LargeRecordComesInPartsWithEachCallOnce) {
  testing::Group group(1, with_records(1 << 14));
  constexpr int kCalls = 3000;
  for (int i = 0; i < kCalls; ++i) (void)group[0]->rpc_sync<&early>("worker0", i);
  proto::FlightQuestion question;
  int calls = 0, parts = 0;
  do {
    const proto::FlightPart part = ask(question).flight();
    EXPECT_LE(part.lines().size(), kMaxFlightBytes);
    EXPECT_EQ(part.missing(), 0u);
    for (const absl::string_view line : absl::StrSplit(part.lines(), '\n')) {
      if (line.find("\"side\":\"made\"") != line.npos && line.find("::early\"") != line.npos) ++calls;
    }
    ++parts;
    question.set_from(part.next());
  } while (question.from() != 0);
  EXPECT_EQ(calls, kCalls);
  EXPECT_GT(parts, 1);
}

TEST_F(FlightQuestionTest, AQuestionForTheFutureVisitsABoundedNumberOfRecords) {
  testing::Group group(1, with_records(1 << 15));
  // Each call to itself has two records.
  for (std::size_t i = 0; i < kMostVisited / 2 + 10; ++i) (void)group[0]->rpc_sync<&early>("worker0", 1);
  proto::FlightQuestion question;
  question.set_since_us(std::numeric_limits<int64_t>::max());
  proto::FlightPart part = ask(question).flight();
  EXPECT_THAT(part.lines(), Not(HasSubstr("::early\"")));
  EXPECT_EQ(part.next(), kMostVisited);
  question.set_from(part.next());
  part = ask(question).flight();
  EXPECT_EQ(part.lines(), "");
  EXPECT_EQ(part.next(), 0u);
}

TEST_F(FlightQuestionTest, OverwrittenRecordsOfThePeriodAreCounted) {
  testing::Group group(1, with_records(16));
  for (int i = 0; i < 100; ++i) (void)group[0]->rpc_sync<&early>("worker0", i);
  proto::FlightQuestion question;
  const proto::FlightPart part = ask(question).flight();
  EXPECT_EQ(part.missing(), part.recorded() - 16);
  question.set_begun(part.recorded() - 20);
  EXPECT_GE(ask(question).flight().missing(), 4u);
}

TEST_F(FlightQuestionTest, GroupsComeByTheirNumbersWithTheOperationsOfThePeriod) {
  using collectives::FlightRecorder;
  testing::Group group(1, with_records(16));
  FlightRecorder first("group \"first\", rank 0 of 1");
  FlightRecorder second("group \"second\", rank 0 of 1");
  const collectives::CoarseTime now = collectives::coarse_now();
  const auto record = [](FlightRecorder& recorder, uint64_t sequence, collectives::CoarseTime began,
                         collectives::CoarseTime ended) {
    const uint64_t number = recorder.begin({}, sequence, FlightRecorder::State::kRunning, began);
    if (ended != 0) recorder.set_state(number, FlightRecorder::State::kDone, ended);
  };
  record(first, 7, now, now + 1000);
  record(first, 8, now + 2000, now + 3000);
  record(first, 9, now + 2000, 0);
  proto::FlightQuestion question;
  question.set_since_us((now + 2500) * 1000);
  question.set_group(1);
  const proto::FlightPart one = ask(question).flight();
  EXPECT_GE(one.group(), 1u);
  EXPECT_THAT(one.lines(), AllOf(HasSubstr("first"), Not(HasSubstr("\"sequence\":7,")),
                                 HasSubstr("\"sequence\":8,"), HasSubstr("\"sequence\":9,")));
  EXPECT_FALSE(one.overwritten());
  question.set_group(one.group() + 1);
  const proto::FlightPart two = ask(question).flight();
  EXPECT_EQ(two.group(), one.group() + 1);
  EXPECT_THAT(two.lines(), HasSubstr("second"));
  question.set_group(two.group() + 1);
  const proto::FlightPart none = ask(question).flight();
  EXPECT_EQ(none.group(), 0u);
  EXPECT_EQ(none.lines(), "");
}

TEST_F(FlightQuestionTest, NumbersOfTheQuestionMayBeAnything) {
  testing::Group group(1, with_records(16));
  (void)group[0]->rpc_sync<&early>("worker0", 1);
  proto::FlightQuestion question;
  question.set_since_us(std::numeric_limits<int64_t>::min());
  question.set_begun(~uint64_t{0});
  EXPECT_THAT(ask(question).flight().lines(), HasSubstr("::early\""));
  question.set_since_us(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(ask(question).flight().lines(), Not(HasSubstr("::early\"")));
  question.set_group(~uint64_t{0});
  EXPECT_EQ(ask(question).flight().group(), 0u);
}

}  // namespace
}  // namespace gradwire::rpc
