#include "gradwire/tools/inspect/trace/chrome_trace.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <map>

namespace gradwire::inspect {
namespace {

using Fields = google::protobuf::Map<std::string, google::protobuf::Value>;

// The written trace, read by another program's parser.
class Trace {
 public:
  Trace(const std::vector<WorkerTrace>& workers, const std::vector<WorkerClock>& clocks) {
    const std::string text = chrome_trace(workers, clocks);
    const auto status = google::protobuf::util::JsonStringToMessage(text, &root_);
    EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << text;
  }
  explicit Trace(const std::vector<WorkerTrace>& workers)
      : Trace(workers, std::vector<WorkerClock>(workers.size(), WorkerClock{ClockFit(), true})) {}

  std::vector<Fields> events(const std::string& phase, const std::string& name = "") const {
    std::vector<Fields> found;
    for (const auto& value : root_.fields().at("traceEvents").list_value().values()) {
      const Fields& fields = value.struct_value().fields();
      if (fields.at("ph").string_value() != phase) continue;
      if (name.empty() || fields.at("name").string_value() == name) found.push_back(fields);
    }
    return found;
  }
  const Fields& other() const { return root_.fields().at("otherData").struct_value().fields(); }

 private:
  google::protobuf::Struct root_;
};

double number(const Fields& fields, const std::string& key) { return fields.at(key).number_value(); }
std::string argument(const Fields& fields, const std::string& key) {
  return fields.at("args").struct_value().fields().at(key).string_value();
}

// "a" calls "b", which calls "a" from its handler.
std::vector<WorkerTrace> nested_calls() {
  return {{.name = "a",
           .incarnation = 1,
           .process = 100,
           .spans = {{.kind = SpanKind::kCall,
                      .name = "outer",
                      .peer = "b",
                      .result = "OK",
                      .begin = 1000,
                      .end = 9000,
                      .ran = 1000,
                      .id = {1, 7}},
                     {.kind = SpanKind::kHandler,
                      .name = "inner",
                      .peer = "b",
                      .result = "OK",
                      .begin = 4000,
                      .end = 5000,
                      .ran = 4500,
                      .id = {2, 3}}}},
          {.name = "b",
           .incarnation = 2,
           .process = 200,
           .spans = {{.kind = SpanKind::kHandler,
                      .name = "outer",
                      .peer = "a",
                      .result = "OK",
                      .begin = 2000,
                      .end = 8000,
                      .ran = 2000,
                      .id = {1, 7}},
                     {.kind = SpanKind::kCall,
                      .name = "inner",
                      .peer = "a",
                      .result = "NOT_FOUND",
                      .begin = 3000,
                      .end = 6000,
                      .ran = 3000,
                      .id = {2, 3},
                      .parent = {1, 7}}}}};
}

TEST(ChromeTrace, SpansHaveTheirTimesAndArguments) {
  const Trace trace(nested_calls());
  const std::vector<Fields> spans = trace.events("X");
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(number(spans[0], "ts"), 0);
  EXPECT_EQ(number(spans[0], "dur"), 8);
  EXPECT_EQ(argument(spans[0], "peer"), "b");
  EXPECT_EQ(argument(spans[0], "id"), "1:7");
  const Fields inner = trace.events("X", "inner").at(0);
  EXPECT_EQ(number(inner, "ts"), 3);
  EXPECT_EQ(inner.at("args").struct_value().fields().at("waited_us").number_value(), 0.5);
  EXPECT_EQ(argument(trace.events("X", "inner").at(1), "result"), "NOT_FOUND");
  EXPECT_EQ(trace.other().at("begin_ns").string_value(), "1000");
}

TEST(ChromeTrace, NamesTheTraceOfARequestFromOutside) {
  std::vector<WorkerTrace> workers = nested_calls();
  workers[0].spans[0].trace = {0xA, 0xB};
  const Trace trace(workers);
  EXPECT_EQ(argument(trace.events("X", "outer").at(0), "trace_id"), "000000000000000a000000000000000b");
  EXPECT_FALSE(trace.events("X", "inner").at(0).at("args").struct_value().fields().contains("trace_id"));
}

TEST(ChromeTrace, ArrowsLeadFromCallToHandlerToNestedCallToAnswer) {
  const Trace trace(nested_calls());
  std::map<std::string, int> arrows;
  for (const Fields& begin : trace.events("s")) {
    bool found = false;
    for (const Fields& end : trace.events("f", begin.at("name").string_value())) {
      if (number(end, "id") == number(begin, "id")) found = true;
    }
    EXPECT_TRUE(found);
    ++arrows[begin.at("name").string_value()];
  }
  EXPECT_EQ(arrows, (std::map<std::string, int>{{"call", 2}, {"answer", 2}, {"nested", 1}}));
  EXPECT_EQ(number(trace.events("s", "answer").at(1), "ts"), 6.999);
}

TEST(ChromeTrace, WorkersAndLanesHaveNames) {
  std::vector<WorkerTrace> workers = nested_calls();
  workers[0].spans.push_back(
      {.kind = SpanKind::kCall, .name = "other", .begin = 2000, .end = 3000, .id = {1, 8}});
  const Trace trace(workers);
  EXPECT_EQ(argument(trace.events("M", "process_name").at(1), "name"), "b (process 200)");
  std::vector<std::string> names;
  for (const Fields& lane : trace.events("M", "thread_name")) names.push_back(argument(lane, "name"));
  EXPECT_EQ(names, (std::vector<std::string>{"call", "call 2", "handler", "call", "handler"}));
  EXPECT_EQ(argument(trace.events("X", "other").at(0), "result"), "not ended");
}

TEST(ChromeTrace, ClocksAreMapped) {
  const Trace trace(nested_calls(), {{ClockFit(), true}, {ClockFit(0, 500, 0, 1500), true}});
  EXPECT_EQ(number(trace.events("X", "outer").at(1), "ts"), 1.5);
  const auto& errors = trace.other().at("clock_error_us").struct_value().fields();
  EXPECT_EQ(errors.at("b").number_value(), 1.5);
  const Trace unknown(nested_calls(), {{ClockFit(), true}, {ClockFit(), false}});
  EXPECT_TRUE(unknown.other().at("clock_error_us").struct_value().fields().at("b").has_null_value());
}

TEST(ChromeTrace, CollectivesShowTheRankThatCameLast) {
  std::vector<WorkerTrace> workers = nested_calls();
  for (auto& worker : workers) worker.spans.clear();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    workers[rank].spans.push_back({.kind = SpanKind::kCollective,
                                   .name = "all_reduce",
                                   .peer = "world",
                                   .result = "OK",
                                   .begin = rank == 0 ? 0 : 5000,
                                   .end = 6000,
                                   .id = {9, 4}});
  }
  const Trace trace(workers);
  const Fields arrow = trace.events("s", "last to arrive").at(0);
  EXPECT_EQ(number(arrow, "pid"), 2);
  EXPECT_EQ(number(arrow, "ts"), 5);
}

TEST(ChromeTrace, PassesLeadFromTheFirstWorker) {
  std::vector<WorkerTrace> workers = nested_calls();
  for (auto& worker : workers) worker.spans.clear();
  workers[1].spans.push_back(
      {.kind = SpanKind::kPass, .name = "backward", .begin = 10, .end = 90, .id = {5, 1}});
  workers[0].spans.push_back(
      {.kind = SpanKind::kPass, .name = "backward", .begin = 40, .end = 60, .id = {5, 1}});
  const Trace trace(workers);
  EXPECT_EQ(number(trace.events("s", "backward").at(0), "pid"), 2);
  EXPECT_EQ(number(trace.events("f", "backward").at(0), "pid"), 1);
}

TEST(ChromeTrace, OperatorsStayOnTheirThread) {
  const Trace trace(
      {{.name = "a",
        .spans = {{.kind = SpanKind::kOperator, .name = "aten::add", .begin = 0, .end = 9, .thread = 3},
                  {.kind = SpanKind::kOperator, .name = "aten::to", .begin = 2, .end = 4, .thread = 3}}}});
  const std::vector<Fields> spans = trace.events("X");
  EXPECT_EQ(number(spans[0], "tid"), number(spans[1], "tid"));
  EXPECT_EQ(argument(trace.events("M", "thread_name").at(0), "name"), "thread 3");
}

TEST(ChromeTrace, AnyTextAndAnyTimesGiveJson) {
  const int64_t lowest = std::numeric_limits<int64_t>::min();
  const int64_t highest = std::numeric_limits<int64_t>::max();
  const std::string text("\"\\\n\x01\xff\xc3(\0z", 9);
  const Trace trace({{.name = text,
                      .spans = {{.name = text, .peer = text, .begin = lowest, .end = highest},
                                {.name = "x", .begin = highest, .end = lowest, .ran = lowest}}}});
  EXPECT_EQ(trace.events("X").size(), 2u);
}

TEST(ChromeTrace, NoWorkers) { EXPECT_TRUE(Trace({}).events("X").empty()); }

}  // namespace
}  // namespace gradwire::inspect
