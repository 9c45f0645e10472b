#include "gradwire/tools/inspect/web/page_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"

namespace gradwire::inspect {
namespace {

using Json = nlohmann::json;
using Stage = proto::CallSummary;

Json parse(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << text;
  return json;
}

TEST(PageJson, BeforeTheFirstReading) {
  const Json json = parse(page_json({.status = "connecting"}));
  EXPECT_EQ(json["status"], "connecting");
  EXPECT_TRUE(json["report"].is_null());
  EXPECT_TRUE(json["pass"].is_null());
}

TEST(PageJson, ChainsOfCallsBeginWithTheSlowest) {
  JobBuilder builder({"a", "b", "c"});
  builder.call("c", "a", "quick", absl::Seconds(1));
  const BuiltCall outer = builder.call("a", "b", "outer", absl::Seconds(9), Stage::NESTED);
  builder.call("b", "c", "inner", absl::Seconds(8), Stage::RUNNING, outer);
  Report report;
  report.job = builder.job;
  History history;
  history.add(report);
  const Json json = parse(page_json({.report = &report, .history = &history}));
  ASSERT_EQ(json["calls"].size(), 2u);
  const Json& chain = json["calls"][0];
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(chain[0]["callee"], "outer");
  EXPECT_EQ(chain[0]["caller"], "a");
  EXPECT_EQ(chain[0]["stage"], "NESTED");
  EXPECT_EQ(chain[1]["callee"], "inner");
  EXPECT_EQ(chain[1]["worker"], "c");
  EXPECT_EQ(chain[1]["age_s"], 8);
  EXPECT_EQ(chain[1]["left_s"], 52);
  EXPECT_EQ(json["calls"][1][0]["callee"], "quick");
  EXPECT_EQ(json["report"]["workers"].size(), 3u);
  EXPECT_EQ(json["lives"].size(), 3u);
}

TEST(PageJson, CallsOfACycleAreShown) {
  JobBuilder builder({"a", "b"});
  // Each claims that the other one made it.
  const BuiltCall first =
      builder.call("a", "b", "x", absl::Seconds(9), Stage::NESTED, {JobBuilder::id("b"), 1});
  builder.call("b", "a", "y", absl::Seconds(8), Stage::NESTED, first);
  Report report;
  report.job = builder.job;
  EXPECT_TRUE(parse(page_json({.report = &report}))["calls"].is_array());
}

TEST(PageJson, ListsAreBounded) {
  JobBuilder builder({"a", "b"});
  BuiltCall parent;
  for (int i = 0; i < 100; ++i) parent = builder.call("a", "b", "f", absl::Seconds(1), Stage::NESTED, parent);
  for (int i = 0; i < 100; ++i) builder.call("a", "b", "g", absl::Seconds(1));
  Report report;
  report.job = builder.job;
  const Json calls = parse(page_json({.report = &report}))["calls"];
  EXPECT_EQ(calls.size(), 20u);
  for (const Json& chain : calls) EXPECT_LE(chain.size(), 16u);
}

TEST(PageJson, HostileTextsStayTexts) {
  const std::string evil = "</script><img src=x onerror=alert(1)>\"\\\n\xff\xe2\x80\xae";
  JobBuilder builder({"a"});
  builder.worker("a").record.set_name(evil);
  builder.worker("a").state.set_host(evil);
  builder.call("a", "a", evil, absl::Seconds(9));
  proto::ProcessGroupState& group = *builder.worker("a").state.add_groups();
  group.set_title(evil);
  Report report;
  report.job = builder.job;
  report.findings = analyze(report.job, {});
  History history;
  history.add(report);
  PassPath pass{.root = evil, .parts = {{evil, 0, 1, evil}}, .path = {{evil, 0, 1, evil}}};
  const std::string text = page_json({.status = evil,
                                      .protection = "token",
                                      .report = &report,
                                      .history = &history,
                                      .pass = pass,
                                      .flight_status = evil});
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  const Json json = parse(text);
  const std::string shown = json["status"];
  EXPECT_EQ(shown.rfind("</script><img src=x onerror=alert(1)>", 0), 0u) << shown;
  EXPECT_EQ(json["report"]["workers"][0]["name"], shown);
  EXPECT_EQ(json["calls"][0][0]["callee"], shown);
  EXPECT_EQ(json["lives"][0]["name"], shown);
  EXPECT_EQ(json["pass"]["path"][0]["worker"], shown);
}

}  // namespace
}  // namespace gradwire::inspect
