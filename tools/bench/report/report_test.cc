#include "gradwire/tools/bench/report/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

using testing::HasSubstr;

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
            R"("peer":"torch_tensorpipe","peer_value":90.0,"ratio":20.0})");
}

TEST(JsonLine, WithoutAPeerIsNull) {
  Row alone = row();
  alone.peer.clear();
  EXPECT_THAT(json_line(alone), HasSubstr(R"("peer":null,"peer_value":null,"ratio":null})"));
}

TEST(ShortNumber, KeepsThreeDigits) {
  EXPECT_EQ(short_number(0.35), "0.35");
  EXPECT_EQ(short_number(88.94), "88.9");
  EXPECT_EQ(short_number(250124.4), "250124");
  EXPECT_EQ(short_number(20), "20");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(100), "100");
}

TEST(Aim, SaysWhetherItIsReached) {
  EXPECT_EQ(aim_of(row()), "ok >= 20x");
  Row slower = row();
  slower.ratio = 19;
  EXPECT_EQ(aim_of(slower), "MISS >= 20x");
  slower.metric = "p999_us";
  EXPECT_EQ(aim_of(slower), "");
}

TEST(Aim, WithoutAPeerIsABoundOnTheFigure) {
  Row idle = {
      .suite = "rpc", .case_name = "idle", .transport = "tcp", .metric = "cpu_percent", .gradwire = 0.2};
  EXPECT_EQ(aim_of(idle), "MISS <= 0.1");
  idle.gradwire = 0.01;
  EXPECT_EQ(aim_of(idle), "ok <= 0.1");
}

TEST(Aim, WithoutACaseHoldsForEveryCase) {
  Row descriptors = {.suite = "scale",
                     .case_name = "all_to_all_8",
                     .transport = "shm",
                     .metric = "descriptors_per_peer",
                     .gradwire = 2};
  EXPECT_EQ(aim_of(descriptors), "ok <= 2");
  descriptors.gradwire = 2.5;
  EXPECT_EQ(aim_of(descriptors), "MISS <= 2");
}

TEST(Aim, TrainingIsTwelveTimesThePeerAndMarkingCostsLittle) {
  Row step = row();
  step.suite = "autograd";
  step.case_name = "remote_add";
  step.ratio = 12;
  EXPECT_EQ(aim_of(step), "ok >= 12x");
  step.transport = "tcp";
  step.ratio = 11.9;
  EXPECT_EQ(aim_of(step), "MISS >= 12x");
  Row marking = {.suite = "autograd",
                 .case_name = "chain_4",
                 .transport = "shm",
                 .metric = "smart_over_fast",
                 .gradwire = 1.2};
  EXPECT_EQ(aim_of(marking), "ok <= 1.3");
  marking.gradwire = 1.4;
  EXPECT_EQ(aim_of(marking), "MISS <= 1.3");
}

TEST(Aim, AllReduceDependsOnRanksSizeAndPeer) {
  Row reduced = row();
  reduced.suite = "collectives";
  reduced.transport = "host";
  reduced.peer = "openmpi";
  const auto aim = [&](const char* name, double ratio) {
    reduced.case_name = name;
    reduced.ratio = ratio;
    return aim_of(reduced);
  };
  EXPECT_EQ(aim("all_reduce_2_ranks_64KiB", 1), "ok >= 1x");
  EXPECT_EQ(aim("all_reduce_2_ranks_1MiB", 1.2), "MISS >= 1.3x");
  EXPECT_EQ(aim("all_reduce_2_ranks_64MiB", 1.7), "ok >= 1.6x");
  EXPECT_EQ(aim("all_reduce_4_ranks_8B", 1.1), "MISS >= 1.2x");
  EXPECT_EQ(aim("broadcast_4_ranks_8B", 1.1), "");
  reduced.peer = "gloo";
  EXPECT_EQ(aim("all_reduce_4_ranks_8B", 3), "ok >= 3x");
}

TEST(TextTable, PutsThePeersOfAFigureOnOneLine) {
  Report report;
  report.rows = {row(), row()};
  report.rows[1].peer = "grpc";
  report.skipped = {"gloo: not installed"};
  const std::string table = text_table(report);
  EXPECT_THAT(table, HasSubstr("torch_tensorpipe: 90 (20x) [ok >= 20x] grpc: 90 (20x)"));
  EXPECT_THAT(table, HasSubstr("skipped: gloo: not installed"));
}

}  // namespace
}  // namespace gradwire::bench
