// Tests a group on two hosts with two ranks each. The hosts are network namespaces with a link between them.
// Skipped with the reason if the namespaces cannot be made: that needs root.
#include <ATen/ATen.h>
#include <sched.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "absl/strings/match.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/tests/collectives/rank_processes.h"
#include "gradwire/tools/bench/run/split_network.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

TEST(Hosts, RanksOfTwoHostsWorkTogetherUntilTheLinkIsCut) {
  auto network = bench::SplitNetwork::make();
  GRADWIRE_NEEDS("network_namespaces", network.status());
  const auto enter = [&](int rank) {
    // Without a token connections stay on their host.
    setenv("GRADWIRE_INSECURE", "1", 1);
    if (setns(rank < 2 ? (*network)->left_fd() : (*network)->right_fd(), CLONE_NEWNET) != 0)
      throw std::runtime_error("cannot enter a network namespace");
  };
  const RankProcesses ranks(
      {.size = 4, .world = {"hosts", "cpu", {}}, .timeout = absl::Seconds(30), .enter = enter},
      [](ProcessGroup& group, std::FILE* out) {
        const int mine = group.rank();
        for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{1} << 20}) {
          at::Tensor tensor = at::full({count}, mine + 1, at::kLong);
          group.all_reduce(tensor);
          if (!tensor.eq(10).all().item<bool>()) std::fprintf(out, "wrong sum\n");
          for (int root = 0; root < 4; ++root) {
            tensor = at::full({count}, mine, at::kLong);
            group.broadcast(tensor, root);
            if (!tensor.eq(root).all().item<bool>()) std::fprintf(out, "wrong broadcast\n");
          }
          std::vector<at::Tensor> list(4);
          for (at::Tensor& each : list) each = at::zeros({count}, at::kLong);
          group.all_gather(list, at::full({count}, mine, at::kLong));
          for (int rank = 0; rank < 4; ++rank) {
            if (!list[rank].eq(rank).all().item<bool>()) std::fprintf(out, "wrong gather\n");
          }
        }
        std::fprintf(out, "ready\n");
        at::Tensor tensor = at::ones({100});
        while (true) group.all_reduce(tensor);
      });
  for (int rank = 0; rank < 4; ++rank) ASSERT_EQ(ranks.line(rank), "ready\n");
  ASSERT_TRUE(bench::cut_link(ranks.process(2)).ok());
  for (int rank = 0; rank < 4; ++rank) {
    const std::string error = ranks.line(rank);
    EXPECT_TRUE(absl::StrContains(error, "all_reduce")) << error;
    EXPECT_TRUE(absl::StrContains(error, "rank")) << error;
  }
}

}  // namespace
}  // namespace gradwire::collectives
