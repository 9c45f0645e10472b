#include "gradwire/tools/inspect/live/flight_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/manual_clock.h"

namespace gradwire::inspect {
namespace {

using rpc::Observer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

proto::WorkerRecord record_of(const std::string& name, uint64_t incarnation) {
  proto::WorkerRecord record;
  record.set_name(name);
  record.set_incarnation(incarnation);
  return record;
}

std::string header(const std::string& source, uint64_t incarnation) {
  return absl::StrCat(R"({"type":"flight","version":1,"source":")", source,
                      R"(","worker":"liar","title":"group \"g\", rank 0 of 1","process":1,"clock_ns":900,)",
                      R"("incarnation":"0x)", absl::Hex(incarnation), R"(","capacity":4,"recorded":9})",
                      "\n");
}

std::string call(int number) {
  return absl::StrCat(R"({"type":"call","side":"made","caller":"0x1","peer":"0x2","number":)", number,
                      R"(,"name":"f","began":100,"ended":200,"code":"OK"})", "\n");
}

// Answers as a worker: by its incarnation, with the question.
class Workers : public FlightAsker {
 public:
  using Handler = std::function<Observer::Answer(const proto::FlightQuestion&)>;

  void add(uint64_t incarnation, Handler handler) { handlers_[incarnation] = std::move(handler); }
  std::vector<Observer::Answer> ask(const std::vector<Observer::Question>& questions) override {
    ++rounds;
    std::vector<Observer::Answer> answers;
    for (const Observer::Question& question : questions) {
      asked.push_back(question.request.flight());
      answers.push_back(handlers_.at(question.worker.incarnation())(question.request.flight()));
    }
    return answers;
  }
  // The state of a worker of process `pid` with an empty part.
  static proto::AgentState state(uint64_t incarnation, int64_t pid = 5) {
    proto::AgentState state;
    state.set_incarnation(incarnation);
    state.set_pid(pid);
    state.set_boot("boot");
    state.set_read_at_us(77);
    state.mutable_flight()->set_recorded(3);
    return state;
  }
  // A worker with two calls in two parts, and one group.
  static Handler honest(uint64_t incarnation, int64_t pid = 5) {
    return [=](const proto::FlightQuestion& question) {
      proto::AgentState answer = state(incarnation, pid);
      proto::FlightPart& part = *answer.mutable_flight();
      if (question.group() == 1) {
        part.set_group(4);
        part.set_lines(absl::StrCat(
            header("group", 0),
            R"({"type":"collective","sequence":1,"operation":"barrier","state":"done","began":1,"ended":2})",
            "\n"));
      } else if (question.group() == 0 && question.from() == 0) {
        part.set_lines(absl::StrCat(header("agent", incarnation), call(1)));
        part.set_next(8);
        part.set_missing(2);
      } else if (question.from() == 8) {
        part.set_lines(call(2));
        part.set_missing(1);
      }
      return answer;
    };
  }

  int rounds = 0;
  std::vector<proto::FlightQuestion> asked;

 private:
  std::map<uint64_t, Handler> handlers_;
};

TEST(FlightCollector, PartsOfAllWorkersBecomeFiles) {
  Workers workers;
  workers.add(1, Workers::honest(1, 5));
  workers.add(2, Workers::honest(2, 6));
  const std::vector<proto::WorkerRecord> records = {record_of("a", 1), record_of("b", 2)};
  FlightCollector collector(workers);
  EXPECT_THAT(collector.begin(records), IsEmpty());
  const FlightCollector::Collected collected = collector.end(records);
  EXPECT_THAT(collected.problems, IsEmpty());
  ASSERT_THAT(collected.files, SizeIs(4));
  const tools::FlightFile& file = collected.files[0];
  EXPECT_EQ(file.title, "a") << "its name in the group, and not one that it has chosen";
  EXPECT_EQ(file.process, 5);
  EXPECT_EQ(file.boot, "boot");
  EXPECT_THAT(file.calls, SizeIs(2));
  EXPECT_EQ(file.recorded - file.capacity, 3u) << "what is missing of the period";
  EXPECT_EQ(file.bad_lines, 0u);
  EXPECT_FALSE(file.truncated);
  EXPECT_EQ(collected.files[1].title, "b");
  EXPECT_TRUE(collected.files[2].is_group);
  EXPECT_THAT(collected.files[2].collectives, SizeIs(1));
  EXPECT_EQ(collected.files[2].recorded, 0u) << "its ring reaches back";
  // The period is that of the worker's own clock.
  EXPECT_EQ(workers.asked.at(2).since_us(), 77);
  EXPECT_EQ(workers.asked.at(2).begun(), 3u);
}

TEST(FlightCollector, GroupsOfAProcessAreReadOnce) {
  Workers workers;
  workers.add(1, Workers::honest(1, 5));
  workers.add(2, Workers::honest(2, 5));
  FlightCollector collector(workers);
  const FlightCollector::Collected collected = collector.end({record_of("a", 1), record_of("b", 2)});
  ASSERT_THAT(collected.files, SizeIs(3));
  EXPECT_EQ(collected.files[0].title, "a");
  EXPECT_EQ(collected.files[1].title, "b");
  EXPECT_TRUE(collected.files[2].is_group);
}

TEST(FlightCollector, WorkerThatCameLaterIsReadFromItsStartAndOneThatWentIsNamed) {
  Workers workers;
  workers.add(1, Workers::honest(1, 5));
  workers.add(2, Workers::honest(2, 6));
  FlightCollector collector(workers);
  EXPECT_THAT(collector.begin({record_of("old\n", 1)}), IsEmpty());
  workers.asked.clear();
  const FlightCollector::Collected collected = collector.end({record_of("new", 2)});
  EXPECT_THAT(collected.problems, ElementsAre(AllOf(HasSubstr("\"old\\n\" is missing"), HasSubstr("left"))));
  EXPECT_EQ(workers.asked.at(0).since_us(), 0);
}

TEST(FlightCollector, WorkerWithoutAnAnswerIsNamedAndLeftOut) {
  Workers workers;
  workers.add(1, Workers::honest(1));
  workers.add(2, [](const auto&) { return absl::DeadlineExceededError("the worker does not answer"); });
  const std::vector<proto::WorkerRecord> records = {record_of("a", 1), record_of("b", 2)};
  FlightCollector collector(workers);
  EXPECT_THAT(collector.begin(records), ElementsAre(HasSubstr("\"b\"")));
  const FlightCollector::Collected collected = collector.end(records);
  EXPECT_THAT(collected.problems, ElementsAre(AllOf(HasSubstr("\"b\""), HasSubstr("does not answer"))));
  EXPECT_THAT(collected.files, SizeIs(2));
}

TEST(FlightCollector, WorkerThatHasNoTimeIsAskedAgainUntilTheBound) {
  Workers workers;
  int refusals = 3;
  workers.add(1, [&](const proto::FlightQuestion& question) -> Observer::Answer {
    if (refusals-- > 0) return absl::ResourceExhaustedError("an observer asks too often");
    return Workers::honest(1)(question);
  });
  FlightCollector collector(workers);
  EXPECT_THAT(collector.end({record_of("a", 1)}).files, SizeIs(2));
  refusals = 1000;
  workers.rounds = 0;
  EXPECT_THAT(collector.end({record_of("a", 1)}).problems, ElementsAre(HasSubstr("too often")));
  EXPECT_EQ(workers.rounds, FlightCollector::Bounds().refusals + 1);
}

// Each of these answers ends the reading of that worker, and costs the others nothing.
TEST(FlightCollector, HostileAnswersAreRefused) {
  struct Case {
    const char* what;
    std::function<void(const proto::FlightQuestion&, proto::AgentState&)> answer;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"no part", [](const auto&, auto& state) { state.clear_flight(); }, "older version"},
      {"garbage", [](const auto&, auto& state) { state.mutable_flight()->set_lines("\xff\x00{"); },
       "not a flight record"},
      {"nothing", [](const auto&, auto&) {}, "not a flight record"},
      {"another worker",
       [](const auto&, auto& state) { state.mutable_flight()->set_lines(header("agent", 9)); },
       "another worker"},
      {"a group in place of calls",
       [](const auto&, auto& state) { state.mutable_flight()->set_lines(header("group", 0)); },
       "another worker"},
      {"the same part again",
       [](const auto& question, auto& state) {
         state.mutable_flight()->set_next(std::max<uint64_t>(question.from(), 1));
       },
       "not behind"},
      {"parts without end",
       [](const auto& question, auto& state) { state.mutable_flight()->set_next(question.from() + 1); },
       "parts"},
      {"bytes without end",
       [](const auto& question, auto& state) {
         state.mutable_flight()->set_next(question.from() + 1);
         state.mutable_flight()->set_lines(std::string(700, 'x'));
       },
       "larger than"},
      {"calls in place of a group",
       [](const auto& question, auto& state) {
         state.mutable_flight()->set_lines(header("agent", 2));
         if (question.group() > 0) state.mutable_flight()->set_group(question.group());
       },
       "another worker"},
      {"groups that go back",
       [](const auto& question, auto& state) {
         const bool first = question.group() <= 1;
         state.mutable_flight()->set_lines(header(question.group() == 0 ? "agent" : "group", 2));
         if (question.group() > 0) state.mutable_flight()->set_group(first ? 5 : 4);
       },
       "do not increase"},
      {"groups without end",
       [](const auto& question, auto& state) {
         state.mutable_flight()->set_lines(header(question.group() == 0 ? "agent" : "group", 2));
         if (question.group() > 0) state.mutable_flight()->set_group(question.group());
       },
       "parts"},
      {"the last number of a group",
       [](const auto& question, auto& state) {
         state.mutable_flight()->set_lines(header(question.group() == 0 ? "agent" : "group", 2));
         if (question.group() > 0) state.mutable_flight()->set_group(~uint64_t{0});
       },
       "do not increase"},
  };
  for (const Case& each : cases) {
    Workers workers;
    workers.add(1, Workers::honest(1, 5));
    workers.add(2, [&](const proto::FlightQuestion& question) -> Observer::Answer {
      proto::AgentState state = Workers::state(2, 6);
      each.answer(question, state);
      return state;
    });
    FlightCollector collector(workers, {.worker_bytes = 20'000, .worker_parts = 50});
    const FlightCollector::Collected collected = collector.end({record_of("a", 1), record_of("b", 2)});
    EXPECT_THAT(collected.problems, ElementsAre(AllOf(HasSubstr("\"b\""), HasSubstr(each.expected))))
        << each.what;
    EXPECT_EQ(std::count_if(collected.files.begin(), collected.files.end(),
                            [](const tools::FlightFile& file) { return file.process == 5; }),
              2)
        << each.what;
  }
}

TEST(FlightCollector, SlowWorkerEndsWithTheTime) {
  ManualClock clock;
  Workers workers;
  workers.add(1, Workers::honest(1, 5));
  workers.add(2, [&](const proto::FlightQuestion& question) -> Observer::Answer {
    clock.advance(absl::Seconds(2));
    proto::AgentState state = Workers::state(2, 6);
    state.mutable_flight()->set_next(question.from() + 1);
    return state;
  });
  FlightCollector collector(workers, {.time = absl::Seconds(15)}, clock);
  const FlightCollector::Collected collected = collector.end({record_of("a", 1), record_of("b", 2)});
  EXPECT_THAT(collected.problems, ElementsAre(AllOf(HasSubstr("\"b\""), HasSubstr("within 15s"))));
  EXPECT_EQ(workers.rounds, 8);
  EXPECT_THAT(collected.files, SizeIs(2));
}

TEST(FlightCollector, BytesOfAllWorkersTogetherAreBounded) {
  Workers workers;
  workers.add(1, Workers::honest(1, 5));
  workers.add(2, Workers::honest(2, 6));
  FlightCollector collector(workers, {.total_bytes = 600});
  EXPECT_THAT(absl::StrJoin(collector.end({record_of("a", 1), record_of("b", 2)}).problems, "\n"),
              HasSubstr("all together"));
}

TEST(FlightCollector, NumbersOfAnAnswerMayBeAnything) {
  Workers workers;
  workers.add(1, [](const proto::FlightQuestion& question) -> Observer::Answer {
    proto::AgentState state = Workers::state(1);
    state.set_pid(-1);
    if (question.group() > 1) return state;
    state.mutable_flight()->set_lines(header(question.group() == 0 ? "agent" : "group", 1));
    state.mutable_flight()->set_missing(~uint64_t{0});
    state.mutable_flight()->set_overwritten(true);
    state.mutable_flight()->set_group(question.group());
    return state;
  });
  FlightCollector collector(workers);
  const FlightCollector::Collected collected = collector.end({record_of("a", 1)});
  EXPECT_THAT(collected.problems, IsEmpty());
  ASSERT_THAT(collected.files, SizeIs(2));
  EXPECT_LT(collected.files[0].recorded, uint64_t{1} << 50);
  EXPECT_GE(collected.files[1].recorded, 5u) << "overwritten";
}

}  // namespace
}  // namespace gradwire::inspect
