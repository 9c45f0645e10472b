#include "gradwire/tools/bench/report/aims.h"

#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

Row row(const std::string& case_name, const std::string& transport, const std::string& peer, double ratio) {
  return {.suite = "rpc",
          .case_name = case_name,
          .transport = transport,
          .metric = "p50_us",
          .gradwire = 4.5,
          .peer = peer,
          .peer_value = 90,
          .ratio = ratio};
}

std::string aim(const std::string& case_name, const std::string& transport, const std::string& peer,
                double ratio) {
  return aim_of(row(case_name, transport, peer, ratio)).text;
}

Row own(const std::string& case_name, const std::string& transport, const std::string& metric, double value) {
  return {
      .suite = "rpc", .case_name = case_name, .transport = transport, .metric = metric, .gradwire = value};
}

TEST(Aim, SaysWhetherItIsReached) {
  EXPECT_EQ(aim("add2", "shm", "torch_tensorpipe", 20), "ok >= 20x");
  EXPECT_EQ(aim("add2", "shm", "torch_tensorpipe", 19), "MISS >= 20x");
  EXPECT_TRUE(aim_of(row("add2", "shm", "torch_tensorpipe", 20)).met);
  EXPECT_FALSE(aim_of(row("add2", "shm", "torch_tensorpipe", 19)).met);
  Row tail = row("add2", "shm", "torch_tensorpipe", 20);
  tail.metric = "p999_us";
  EXPECT_EQ(aim_of(tail).text, "");
}

TEST(Aim, StreamsAreComparedByTheirItems) {
  Row stream = row("stream_8B", "tcp", "grpc", 3);
  stream.metric = "items_per_s";
  EXPECT_EQ(aim_of(stream).text, "ok >= 3x");
  stream.case_name = "stream_4KiB";
  stream.ratio = 2.9;
  EXPECT_EQ(aim_of(stream).text, "MISS >= 3x");
}

TEST(Aim, EveryCadenceHasTheSame) {
  for (const char* name : {"add2_every_200us", "add2_every_10ms_4_per_core", "push_pull_1MiB_every_2ms"}) {
    EXPECT_EQ(aim(name, "tcp", "torch_tensorpipe", 4.9), "MISS >= 5x") << name;
  }
  EXPECT_EQ(aim("add2_every_2ms", "tcp", "grpc", 3), "ok >= 3x");
  EXPECT_EQ(aim("add2_every_2ms", "shm", "floor_wake", 1), "");
}

TEST(Aim, TensorsAreCloseToTheirFloor) {
  EXPECT_EQ(aim("echo_1MiB", "shm", "floor_handoff", 0.8), "ok >= 0.769x");
  EXPECT_EQ(aim("pull_1MiB", "shm", "floor_handoff", 0.7), "MISS >= 0.769x");
  EXPECT_EQ(aim("echo_16MiB", "shm", "torch_tensorpipe", 4), "ok >= 4x");
  EXPECT_EQ(aim("echo_16MiB", "tcp", "torch_tensorpipe", 1.5), "ok >= 1.5x");
  EXPECT_EQ(aim("push_pull_1MiB", "tcp", "torch_tensorpipe", 3), "MISS >= 4x");
  EXPECT_EQ(aim("add2_cold", "shm", "floor_wake", 0.2), "MISS >= 0.25x");
}

TEST(Aim, OfATrainingStepDependsOnTheTransport) {
  EXPECT_EQ(aim("remote_add", "shm", "torch_tensorpipe", 39), "MISS >= 40x");
  EXPECT_EQ(aim("remote_add", "tcp", "torch_tensorpipe", 12), "ok >= 12x");
  EXPECT_EQ(aim("chain_4", "tcp", "torch_tensorpipe", 8), "ok >= 8x");
  EXPECT_EQ(aim("fanout_8", "shm", "torch_tensorpipe", 7), "MISS >= 8x");
}

TEST(Aim, OfACollectiveDependsOnRanksSizeAndPeer) {
  const auto of = [](const char* name, double ratio) { return aim(name, "host", "openmpi", ratio); };
  EXPECT_EQ(of("all_reduce_2_ranks_8B", 1), "ok >= 1x");
  EXPECT_EQ(of("all_reduce_2_ranks_64B", 1.2), "MISS >= 1.3x");
  EXPECT_EQ(of("all_reduce_2_ranks_64MiB", 1.7), "ok >= 1.6x");
  EXPECT_EQ(of("all_reduce_4_ranks_8B", 1.1), "MISS >= 1.2x");
  EXPECT_EQ(of("all_reduce_4_ranks_64KiB", 1.3), "ok >= 1.3x");
  EXPECT_EQ(of("broadcast_4_ranks_8B", 1), "ok >= 1x");
  EXPECT_EQ(of("barrier_2_ranks", 0.9), "MISS >= 1x");
  EXPECT_EQ(aim("all_reduce_4_ranks_8B", "host", "gloo", 3), "ok >= 3x");
  EXPECT_EQ(aim("broadcast_4_ranks_8B", "host", "gloo", 3), "");
}

TEST(OwnAim, IsAMaximumOrAMinimum) {
  EXPECT_EQ(own_aim_of(own("idle", "tcp", "cpu_percent", 0.2)).text, "MISS <= 0.1");
  EXPECT_EQ(own_aim_of(own("idle", "tcp", "cpu_percent", 0.01)).text, "ok <= 0.1");
  EXPECT_EQ(own_aim_of(own("null", "shm", "p50_us", 2)).text, "ok <= 2");
  EXPECT_EQ(own_aim_of(own("null", "tcp", "p50_us", 2)).text, "");
  EXPECT_EQ(own_aim_of(own("inflight_add2", "shm", "calls_per_s", 400'000)).text, "ok >= 400000");
  EXPECT_EQ(own_aim_of(own("inflight_add2", "shm", "calls_per_s", 399'999)).text, "MISS >= 400000");
  EXPECT_EQ(own_aim_of(own("inflight_add2", "tcp", "calls_per_s", 250'000)).text, "ok >= 200000");
  EXPECT_EQ(own_aim_of(own("inflight_null", "shm", "calls_per_s", 1)).text, "MISS >= 1000000");
}

TEST(OwnAim, WithoutACaseHoldsForEveryCase) {
  EXPECT_EQ(own_aim_of(own("all_to_all_8", "shm", "descriptors_per_peer", 2)).text, "ok <= 2");
  EXPECT_EQ(own_aim_of(own("all_to_all_8", "shm", "descriptors_per_peer", 2.5)).text, "MISS <= 2");
  EXPECT_EQ(own_aim_of(own("chain_4", "shm", "smart_over_fast", 1.4)).text, "MISS <= 1.3");
}

TEST(AimsSummary, CountsEachAimOnceAndEachSuite) {
  std::vector<Row> rows = {row("add2", "shm", "torch_tensorpipe", 20), row("add2", "tcp", "grpc", 3),
                           own("inflight_add2", "shm", "calls_per_s", 500'000)};
  // The bound on Gradwire's own figure counts once, the ratio to each peer counts too.
  rows.push_back(rows.back());
  rows[2].peer = "torch_tensorpipe";
  rows[2].ratio = 10;
  rows[3].peer = "grpc";
  rows.push_back(own("idle", "tcp", "cpu_percent", 0.01));
  rows.push_back(row("remote_add", "shm", "torch_tensorpipe", 50));
  rows.back().suite = "autograd";
  rows.push_back(row("add2", "tcp", "torch_tensorpipe", 1));
  EXPECT_EQ(aims_summary(rows), "aims: 4 of 7 met\n  rpc: 3 of 6 met\n  autograd: 1 of 1 met\n");
  EXPECT_EQ(aims_summary({}), "aims: 0 of 0 met\n");
}

}  // namespace
}  // namespace gradwire::bench
