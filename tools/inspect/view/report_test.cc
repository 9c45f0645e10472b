#include "gradwire/tools/inspect/view/report.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"
#include "gradwire/tools/inspect/view/tables.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

void counter(proto::AgentState& state, const char* name, int64_t value) {
  proto::NamedNumber& number = *state.add_statistics();
  number.set_name(name);
  number.set_value(value);
}

// Two views of one job, two seconds apart.
JobBuilder at_time(int64_t seconds, uint64_t bytes, int64_t calls, uint64_t link = 1) {
  JobBuilder builder({"a", "b"});
  for (const char* name : {"a", "b"}) {
    proto::AgentState& state = builder.worker(name).state;
    state.set_read_at_us(seconds * 1'000'000);
    counter(state, "calls_made", calls);
  }
  proto::LinkState& entry = *builder.peer("a", "b").add_links();
  entry.set_number(link);
  entry.set_transport("shm");
  entry.set_in_use(true);
  entry.set_bytes_sent(bytes);
  entry.set_bytes_received(2 * bytes);
  return builder;
}

TEST(Rates, AreDifferencesBetweenTwoReadings) {
  const Rates rates = compare(at_time(10, 1'000, 5).job, at_time(12, 5'000, 25).job);
  EXPECT_EQ(rates.links.at({97, 98}).sent, 2'000);
  EXPECT_EQ(rates.links.at({97, 98}).received, 4'000);
  EXPECT_EQ(rates.calls_made.at(97), 10);
}

TEST(Rates, NewConnectionsAndCountersThatWentBackAreLeftOut) {
  const Rates other_link = compare(at_time(10, 1'000, 25, 1).job, at_time(12, 5'000, 5, 2).job);
  EXPECT_FALSE(other_link.links.contains({97, 98}));
  EXPECT_EQ(other_link.calls_made.at(97), 0);
  EXPECT_TRUE(compare(JobView(), at_time(12, 5'000, 5).job).links.empty());
  EXPECT_TRUE(compare(at_time(12, 0, 0).job, at_time(12, 5'000, 5).job).links.empty());
}

Report report_of(JobBuilder builder) {
  Report report;
  report.findings = analyze(builder.job, {});
  report.job = std::move(builder.job);
  report.job.group = "group/rpc/0/rpc";
  return report;
}

TEST(TextReport, ShowsProblemsFirstAndOmitsEmptyTables) {
  JobBuilder builder = at_time(10, 1'000, 5);
  builder.call("a", "b", "f", absl::Seconds(10));
  const std::string text = text_report(report_of(std::move(builder)));
  EXPECT_THAT(text,
              AllOf(HasSubstr("2 workers, all answer; 1 problem"),
                    HasSubstr("slow call: \"f\" at \"b\": running for 10.0 s"), HasSubstr("Connections\n"),
                    Not(HasSubstr("RRefs\n")), Not(HasSubstr("Process groups"))));
  EXPECT_LT(text.find("Findings"), text.find("Workers"));
}

TEST(TextReport, ShowsNoByteThatATerminalObeys) {
  JobBuilder builder({"a", "b"});
  builder.worker("a").state.set_host("h\x1b[2J");
  builder.call("a", "b", "f\x1b]0;title\x07\xff", absl::Seconds(10));
  builder.worker("b").status = absl::UnavailableError("\x1b[31m");
  for (const std::string& text : {text_report(report_of(builder)), json_report(report_of(builder))}) {
    for (const char byte : text) EXPECT_TRUE(byte == '\n' || (byte >= 0x20 && byte < 0x7f)) << int{byte};
  }
}

TEST(JsonReport, IsAnObjectWithWorkersAndFindings) {
  JobBuilder builder = at_time(10, 1'000, 5);
  const auto f = builder.call("a", "b", "f", absl::Seconds(10));
  builder.call("b", "a", "g", absl::Seconds(8), proto::CallSummary::RUNNING, f);
  builder.worker("b").record.set_name("b \"quoted\"");
  google::protobuf::Struct json;
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(json_report(report_of(std::move(builder))), &json).ok());
  EXPECT_EQ(json.fields().at("group").string_value(), "group/rpc/0/rpc");
  const auto& workers = json.fields().at("workers").list_value();
  ASSERT_EQ(workers.values_size(), 2);
  const auto& b = workers.values(1).struct_value().fields();
  EXPECT_EQ(b.at("name").string_value(), "b \"quoted\"");
  EXPECT_EQ(b.at("incarnation").string_value(), "0000000000000062");
  EXPECT_TRUE(b.at("answered").bool_value());
  const auto& pending = b.at("pending").list_value().values(0).struct_value().fields();
  EXPECT_EQ(pending.at("parent").string_value(), "0000000000000061/1");
  EXPECT_EQ(pending.at("age_s").number_value(), 8);
  const auto& finding = json.fields().at("findings").list_value().values(0).struct_value().fields();
  EXPECT_EQ(finding.at("kind").string_value(), "slow_call");
  EXPECT_EQ(finding.at("culprits").list_value().values(0).string_value(), "a");
  EXPECT_EQ(finding.at("details").list_value().values_size(), 2);
}

TEST(JsonReport, NamesTheTraceOfARequestFromOutside) {
  JobBuilder builder = at_time(10, 1'000, 5);
  builder.call("a", "b", "f", absl::Seconds(10));
  proto::CallOrigin& parent = *builder.worker("a").state.mutable_pending(0)->mutable_parent();
  parent.set_kind(proto::CallOrigin::TRACE);
  parent.set_incarnation(0x1f);
  parent.set_number(2);
  const Report report = report_of(std::move(builder));
  google::protobuf::Struct json;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json_report(report), &json).ok());
  const auto& a = json.fields().at("workers").list_value().values(0).struct_value().fields();
  const auto& pending = a.at("pending").list_value().values(0).struct_value().fields();
  EXPECT_EQ(pending.at("trace_id").string_value(), "000000000000001f0000000000000002");
  EXPECT_FALSE(pending.contains("parent"));
  EXPECT_EQ(calls_table(report.job).rows.at(0).cells.back().text, "a traced request");
}

TEST(Tables, AreSortedFilteredAndCut) {
  Table table{"t", {{"name"}, {"n", true}}, {}, ""};
  for (const auto& [name, n] : {std::pair("bee", 1), std::pair("ant", 20), std::pair("cat", 3)}) {
    table.rows.push_back({{{name, 0}, {std::to_string(n), double(n)}}, static_cast<uint64_t>(n)});
  }
  sort_rows(table, 1, false);
  EXPECT_THAT(lines_of(table, 0), ElementsAre("name   n", "ant   20", "cat    3", "bee    1"));
  sort_rows(table, 0, true);
  EXPECT_EQ(table.rows[0].cells[0].text, "cat");
  EXPECT_THAT(lines_of(table, 4), Each(SizeIs(4)));
  filter_rows(table, "A");
  EXPECT_EQ(table.rows.size(), 2u);
  keep_worker(table, 20);
  EXPECT_EQ(table.rows.size(), 1u);
  sort_rows(table, 7, false);
  filter_rows(table, "");
  EXPECT_EQ(table.rows.size(), 1u);
}

TEST(Tables, EveryRowHasACellForEachColumn) {
  JobBuilder builder = at_time(10, 1'000, 5);
  builder.call("a", "b", "f", absl::Seconds(10));
  builder.worker("b").status = absl::UnavailableError("gone");
  proto::ProcessGroupState& group = *builder.worker("a").state.add_groups();
  group.set_title("group \"g\", rank 0 of 2");
  builder.worker("a").state.add_rrefs()->set_count(3);
  builder.worker("a").state.mutable_autograd()->add_passes()->add_waits_for(98);
  const Report report = report_of(std::move(builder));
  for (const Table& table :
       {workers_table(report.job, report.rates), links_table(report.job, report.rates),
        calls_table(report.job), functions_table(report.job), rrefs_table(report.job),
        passes_table(report.job), groups_table(report.job), findings_table(report.findings)}) {
    for (const Table::Row& row : table.rows) EXPECT_EQ(row.cells.size(), table.columns.size()) << table.title;
  }
}

}  // namespace
}  // namespace gradwire::inspect
