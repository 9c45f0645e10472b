#include "gradwire/collectives/coalesce/coalesced.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/coalescing.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/group_checks.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Ranks;
using testing::refuses;
using Tensors = std::vector<at::Tensor>;

// Small tensors that travel in one buffer, and a large one that does not.
const std::vector<std::vector<int64_t>> kShapes = {{}, {3}, {0}, {2, 5}, {300, 200}, {7, 1, 2}};

at::Tensor counting(at::IntArrayRef sizes, int rank, at::ScalarType dtype = at::kFloat) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kFloat).remainder(50) + 100 * rank).view(sizes).to(dtype);
}

Tensors counting_all(int rank, at::ScalarType dtype = at::kFloat) {
  Tensors tensors;
  for (const auto& shape : kShapes) tensors.push_back(counting(shape, rank, dtype));
  return tensors;
}

// The options of a group over shared memory, and of one over messages.
std::vector<ProcessGroupOptions> both_ways() { return {{}, {.options = {{"shared_memory", "off"}}}}; }

TEST(Coalesced, AllReduceOfManyShapes) {
  for (const ProcessGroupOptions& options : both_ways()) {
    Ranks ranks(3, options);
    ranks.run([](const Group& group) {
      const Tensors tensors = counting_all(group->rank());
      all_reduce_coalesced(tensors, ReduceOp::kSum, group);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(tensors[i].equal(3 * counting(kShapes[i], 1))) << i;
      }
      const Tensors later = counting_all(group->rank());
      all_reduce_coalesced_async(later, ReduceOp::kMax, group)->wait();
      EXPECT_TRUE(later[3].equal(counting(kShapes[3], 2)));
    });
  }
}

TEST(Coalesced, AllReduceOfSeveralDtypesAndStrides) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    Tensors tensors;
    for (const at::ScalarType dtype :
         {at::kFloat, at::kHalf, at::kLong, at::kFloat, at::kDouble, at::kByte}) {
      tensors.push_back(counting({3, 4}, group->rank(), dtype).t());
    }
    all_reduce_coalesced(tensors, ReduceOp::kSum, group);
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor expected =
          counting({3, 4}, 0, tensor.scalar_type()) + counting({3, 4}, 1, tensor.scalar_type());
      EXPECT_TRUE(tensor.equal(expected.t())) << tensor;
    }
    const Tensors scaled = {at::ones({2}), at::ones({3})};
    all_reduce_coalesced(scaled, premul_sum(group->rank() + 1), group);
    EXPECT_TRUE(scaled[1].equal(at::full({3}, 3.0)));
  });
}

TEST(Coalesced, AllGatherOfManyShapes) {
  for (const ProcessGroupOptions& options : both_ways()) {
    Ranks ranks(3, options);
    ranks.run([](const Group& group) {
      std::vector<Tensors> lists(3);
      for (Tensors& list : lists) {
        for (const auto& shape : kShapes) list.push_back(at::zeros(shape));
      }
      all_gather_coalesced(lists, counting_all(group->rank()), group);
      for (int rank = 0; rank < 3; ++rank) {
        for (std::size_t i = 0; i < kShapes.size(); ++i)
          EXPECT_TRUE(lists[rank][i].equal(counting(kShapes[i], rank)));
      }
      const Tensors wholes = {at::zeros({3, 4}), at::zeros({6}, at::kLong)};
      all_gather_into_tensor_coalesced(
          wholes, {at::full({4}, 1.0 * group->rank()), at::full({2}, group->rank(), at::kLong)}, group);
      EXPECT_TRUE(wholes[0].select(1, 0).equal(at::arange(3, at::kFloat)));
      EXPECT_EQ(wholes[1][4].item<int64_t>(), 2);
    });
  }
}

TEST(Coalesced, ReduceScatterOfManyShapes) {
  for (const ProcessGroupOptions& options : both_ways()) {
    Ranks ranks(3, options);
    ranks.run([](const Group& group) {
      Tensors outputs;
      std::vector<Tensors> lists;
      for (const auto& shape : kShapes) {
        outputs.push_back(at::zeros(shape));
        // The entry for rank r is counting(shape, r), from every rank.
        lists.push_back({counting(shape, 0), counting(shape, 1), counting(shape, 2)});
      }
      reduce_scatter_coalesced(outputs, lists, ReduceOp::kSum, group);
      for (std::size_t i = 0; i < kShapes.size(); ++i)
        EXPECT_TRUE(outputs[i].equal(3 * counting(kShapes[i], group->rank()))) << i;
      const Tensors parts = {at::zeros({2}), at::zeros({1, 3})};
      reduce_scatter_tensor_coalesced_async(parts, {at::ones({6}), at::arange(9, at::kFloat).view({3, 3})},
                                            ReduceOp::kAvg, group)
          ->wait();
      EXPECT_TRUE(parts[0].equal(at::ones({2})));
      EXPECT_TRUE(parts[1].equal((at::arange(3, at::kFloat) + 3 * group->rank()).view({1, 3})));
    });
  }
}

TEST(Coalesced, ManagerBeginsDifferentCollectivesTogether) {
  for (const ProcessGroupOptions& options : both_ways()) {
    Ranks ranks(3, options);
    ranks.run([](const Group& group) {
      const int rank = group->rank();
      CoalescingManager together(group);
      EXPECT_TRUE(together.start()->is_success());
      const at::Tensor sum = at::full({4}, rank + 1.0), most = at::full({2}, 1.0 * rank);
      const at::Tensor sent = at::full({5}, 1.0 * rank), other = at::full({1}, 1.0 * rank);
      const at::Tensor copied = at::full({6}, rank, at::kLong);
      together.all_reduce(sum);
      together.all_reduce(most, ReduceOp::kMax);
      together.broadcast(sent, 1);
      together.broadcast(copied, 1);
      together.broadcast(other, 2);
      Tensors uneven = {at::zeros({1}), at::zeros({2}), at::zeros({3})},
              pair = {at::zeros({1}), at::zeros({1}), at::zeros({1})};
      together.all_gather(uneven, at::full({rank + 1}, 1.0 * rank));
      const at::Tensor whole = at::zeros({3}), part = at::zeros({1}), piece = at::zeros({2});
      together.all_gather_into_tensor(whole, at::full({1}, 1.0 * rank));
      together.reduce_scatter(part, {at::full({1}, 1.0), at::full({1}, 2.0), at::full({1}, 3.0)});
      together.reduce_scatter_tensor(piece, at::ones({6}));
      together.all_to_all(
          pair, {at::full({1}, 10.0 * rank), at::full({1}, 10.0 * rank + 1), at::full({1}, 10.0 * rank + 2)});
      EXPECT_EQ(together.size(), 10);
      together.start()->wait();
      EXPECT_EQ(together.size(), 0);
      EXPECT_TRUE(sum.equal(at::full({4}, 6.0)));
      EXPECT_TRUE(most.equal(at::full({2}, 2.0)));
      EXPECT_TRUE(sent.equal(at::full({5}, 1.0)));
      EXPECT_TRUE(copied.equal(at::full({6}, 1, at::kLong)));
      EXPECT_TRUE(other.equal(at::full({1}, 2.0)));
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(uneven[i].equal(at::full({i + 1}, 1.0 * i)));
      EXPECT_TRUE(whole.equal(at::arange(3, at::kFloat)));
      EXPECT_EQ(part.item<float>(), 3 * (rank + 1));
      EXPECT_TRUE(piece.equal(at::full({2}, 3.0)));
      for (int i = 0; i < 3; ++i) EXPECT_EQ(pair[i].item<float>(), 10 * i + rank);
      together.all_reduce(sum);
      together.run();
      EXPECT_TRUE(sum.equal(at::full({4}, 18.0)));
    });
  }
}

// More data than one batch takes.
TEST(Coalesced, ManyTensorsNeedSeveralBatches) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    Tensors tensors;
    for (int i = 0; i < 300; ++i) tensors.push_back(at::full({4000}, i + group->rank(), at::kFloat));
    all_reduce_coalesced(tensors, ReduceOp::kSum, group);
    for (int i = 0; i < 300; ++i) EXPECT_EQ(tensors[i][3999].item<float>(), 2 * i + 1);
  });
}

TEST(Coalesced, IsOneOperationOfTheGroup) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    all_reduce_coalesced({at::ones({2}), at::ones({3})}, ReduceOp::kSum, group);
    EXPECT_THAT(group->flight_record(), AllOf(HasSubstr("#0 all_reduce_coalesced"), HasSubstr("Float[5]")));
    EXPECT_EQ(group->flight_record().find("#1"), std::string::npos);
  });
}

TEST(Coalesced, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  Ranks ranks(2);
  const Group& group = ranks[0];
  const at::Tensor tensor = at::ones({2});
  refuses([&] { all_reduce_coalesced({}, ReduceOp::kSum, group); }, "there are no calls");
  refuses(
      [&] {
        all_reduce_coalesced({tensor, at::Tensor()}, ReduceOp::kSum, group);
      },
      "all_reduce_coalesced of group \"world\" (rank 0 of 2): call 1: the tensor is undefined");
  refuses(
      [&] {
        all_reduce_coalesced({tensor, at::ones({2}, at::kLong)}, ReduceOp::kAvg, group);
      },
      "call 1: avg of Long");
  refuses([&] { all_reduce_coalesced({at::ones({2}).to_sparse()}, ReduceOp::kSum, group); }, "not dense");
  refuses([&] { all_gather_coalesced({{tensor}}, {tensor}, group); }, "lists has 1 entries, expected 2");
  refuses([&] { all_gather_coalesced({{tensor}, {}}, {tensor}, group); }, "a list of `lists` has 0 entries");
  refuses(
      [&] {
        all_gather_coalesced({{at::ones({3})}, {tensor}}, {tensor}, group);
      },
      "call 0: the list[0] is Float[3]");
  refuses([&] { reduce_scatter_coalesced({tensor}, {{tensor}}, ReduceOp::kSum, group); },
          "call 0: the list has 1 tensors");
  refuses([&] { reduce_scatter_coalesced({tensor}, {}, ReduceOp::kSum, group); }, "lists has 0 entries");
  refuses([&] { all_gather_into_tensor_coalesced({tensor}, {tensor}, group); }, "2 times the input");
  refuses([&] { all_gather_into_tensor_coalesced({tensor}, {}, group); }, "inputs has 0 entries");
  refuses(
      [&] {
        group->coalesced({{.outputs = {tensor, tensor}, .inputs = {}}});
      },
      "has 2 outputs, expected 1");
  refuses([&] { group->coalesced({{.outputs = {tensor}, .inputs = {tensor}}}); },
          "has 1 inputs, expected none");
  refuses([&] { group->coalesced({{.outputs = {}, .inputs = {}}}); }, "has 0 outputs, expected 1");
  CoalescingManager together(group);
  together.broadcast(tensor, 7);
  refuses([&] { together.start(); }, "call 0: the root is rank 7");
  ranks.run([](const Group& each) { each->barrier(); });
}

TEST(Coalesced, ConsistencyCheckNamesTheRankThatDiffers) {
  Ranks ranks(3, {.timeout = absl::Seconds(60), .check_consistency = true});
  const auto results = ranks.results([](const Group& group) {
    all_reduce_coalesced({at::ones({2}), at::ones({group->rank() == 1 ? 4 : 3})}, ReduceOp::kSum, group);
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
    EXPECT_THAT(result.ToString(), HasSubstr("rank 1 called #0 all_reduce_coalesced"));
  }
}

TEST(Coalesced, RankThatDoesNotComeIsNamedAtTheTimeout) {
  Ranks ranks(3, {.timeout = absl::Seconds(2)});
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() == 2) return;
    all_reduce_coalesced({at::ones({2}), at::ones({3})}, ReduceOp::kSum, group);
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded) << results[0];
  EXPECT_THAT(results[0].ToString(), AllOf(HasSubstr("all_reduce_coalesced #0"), HasSubstr("rank 2")));
}

TEST(Coalesced, RankThatLeavesIsNamed) {
  Ranks ranks(2, {.timeout = absl::Seconds(60)});
  const auto results = ranks.results([](const Group& group) {
    if (group->rank() == 1) return group->destroy();
    all_reduce_coalesced_async({at::ones({2}), at::ones({3})}, ReduceOp::kSum, group)->wait();
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 1"));
}

TEST(Coalesced, RankThatIsNotAMemberDoesNothing) {
  Ranks ranks(2);
  ranks.run([](const Group& world) {
    const Group group = world->new_group({0});
    const at::Tensor tensor = at::ones({2});
    all_reduce_coalesced({tensor}, premul_sum(3), group);
    EXPECT_TRUE(tensor.equal(at::full({2}, world->rank() == 0 ? 3.0 : 1.0)));
  });
}

}  // namespace
}  // namespace gradwire::collectives
