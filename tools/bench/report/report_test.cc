#include "gradwire/tools/bench/report/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

Row row() {
  return {.suite = "rpc",
          .case_name = "add2",
          .transport = "shm",
          .metric = "p50_us",
          .gradwire = 4.5,
          .peer = "torch_tensorpipe",
          .peer_value = 90,
          .ratio = 20};
}

TEST(JsonLine, HasTheDocumentedForm) {
  EXPECT_EQ(json_line(row()),
            R"({"suite":"rpc","case":"add2","transport":"shm","metric":"p50_us","gradwire":4.5,)"
            R"("peer":"torch_tensorpipe","peer_value":90.0,"ratio":20.0,"rounds":[]})");
}

TEST(JsonLine, HasTheValuesOfTheRounds) {
  Row measured = row();
  measured.rounds = {4, 4.5, 5};
  EXPECT_THAT(json_line(measured), HasSubstr(R"("rounds":[4.0,4.5,5.0])"));
}

TEST(JsonLine, WithoutAPeerIsNull) {
  Row alone = row();
  alone.peer.clear();
  EXPECT_THAT(json_line(alone), HasSubstr(R"("peer":null,"peer_value":null,"ratio":null,)"));
}

TEST(ShortNumber, KeepsThreeDigits) {
  EXPECT_EQ(short_number(0.35), "0.35");
  EXPECT_EQ(short_number(88.94), "88.9");
  EXPECT_EQ(short_number(250124.4), "250124");
  EXPECT_EQ(short_number(20), "20");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(100), "100");
}

TEST(TextTable, PutsThePeersOfAFigureOnOneLine) {
  Report report;
  report.rows = {row(), row()};
  report.rows[1].peer = "grpc";
  report.skipped = {"gloo: not installed"};
  const std::string table = text_table(report);
  EXPECT_THAT(table, HasSubstr("torch_tensorpipe: 90 (20x) [ok >= 20x] grpc: 90 (20x)"));
  EXPECT_THAT(table, HasSubstr("skipped: gloo: not installed"));
  EXPECT_THAT(table, EndsWith("aims: 1 of 1 met\n  rpc: 1 of 1 met\n"));
}

TEST(TextTable, PrintsABoundOnGradwiresOwnFigureOnce) {
  Report report;
  report.rows = {row(), row()};
  for (Row& figure : report.rows) {
    figure.case_name = "inflight_add2";
    figure.metric = "calls_per_s";
    figure.gradwire = 300'000;
  }
  report.rows[1].peer = "grpc";
  EXPECT_THAT(text_table(report),
              HasSubstr("300000   [MISS >= 400000] torch_tensorpipe: 90 (20x) [ok >= 20x] grpc: 90 (20x)\n"));
}

}  // namespace
}  // namespace gradwire::bench
