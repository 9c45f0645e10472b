// Tests groups with tensors of different shapes, strides and dtypes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <atomic>

#include "gradwire/base/error.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using testing::Ranks;
using Tensors = std::vector<at::Tensor>;

[[maybe_unused]] const bool tensors_use_local_backend = (testing::use_local_backend(), true);

at::Tensor counting(at::IntArrayRef sizes, int rank) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return (at::arange(count, at::kFloat) + 100 * rank).view(sizes);
}

TEST(ProcessGroupTensors, StridedTensorsAreReadAndWritten) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    const int rank = group->rank();
    const at::Tensor sum = counting({4, 6}, 0) + counting({4, 6}, 1) + counting({4, 6}, 2);
    // Returns a larger tensor, and a view of every second column of it. The other columns must not change.
    const auto strided = [](const at::Tensor& values) {
      at::Tensor base = at::full({values.size(0), 2 * values.size(1)}, -7.0, at::kFloat);
      at::Tensor view = base.slice(1, 0, base.size(1), 2);
      view.copy_(values);
      return std::pair(base, view);
    };
    auto [base, view] = strided(counting({4, 6}, rank));
    group->all_reduce(view);
    EXPECT_TRUE(view.equal(sum));
    EXPECT_TRUE(base.slice(1, 1, base.size(1), 2).equal(at::full({4, 6}, -7.0)));

    at::Tensor transposed = counting({6, 4}, rank).t();
    group->broadcast(transposed, 1);
    EXPECT_TRUE(transposed.equal(counting({6, 4}, 1).t()));

    auto [reduced_base, reduced] = strided(counting({4, 6}, rank));
    group->reduce(reduced, 2);
    EXPECT_TRUE(reduced.equal(rank == 2 ? sum : counting({4, 6}, rank)));

    Tensors list;
    for (int i = 0; i < 3; ++i) list.push_back(at::zeros({6, 4}).t());
    group->all_gather(list, strided(counting({4, 6}, rank)).second);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(list[i].equal(counting({4, 6}, i)));

    at::Tensor whole = at::zeros({6, 12}).t();
    group->all_gather_into_tensor(whole, strided(counting({4, 6}, rank)).second);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(whole.slice(0, 4 * i, 4 * i + 4).equal(counting({4, 6}, i)));

    // Inputs that are only read may be expanded.
    at::Tensor output = at::zeros({6, 3}).t();
    group->reduce_scatter(output, Tensors(3, at::full({1, 6}, rank + 1.0).expand({3, 6})));
    EXPECT_TRUE(output.equal(at::full({3, 6}, 6.0)));

    at::Tensor single = at::zeros({2, 3}).t();
    group->all_to_all_single(single, at::full({1, 2}, static_cast<double>(rank)).expand({3, 2}));
    EXPECT_TRUE(single.equal(at::arange(3, at::kFloat).view({3, 1}).expand({3, 2})));
  });
}

// As torch.distributed over NCCL; over gloo it refuses different shapes.
TEST(ProcessGroupTensors, AllGatherOfDifferentShapes) {
  Ranks ranks(3, {.check_consistency = true});
  ranks.run([](const Group& group) {
    const int rank = group->rank();
    const std::vector<std::vector<int64_t>> shapes = {{4}, {0, 3}, {2, 5}};
    for (const bool later : {false, true}) {
      // The second list is strided.
      Tensors list = {at::zeros({4}), at::zeros({0, 3}), later ? at::zeros({5, 2}).t() : at::zeros({2, 5})};
      if (later) {
        group->all_gather_async(list, counting(shapes[rank], rank))->wait();
      } else {
        group->all_gather(list, counting(shapes[rank], rank));
      }
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(list[i].equal(counting(shapes[i], i))) << i;
    }
  });
  const auto results = ranks.results([](const Group& group) {
    Tensors list = {at::zeros({1}), at::zeros({2}), at::zeros({group->rank() == 1 ? 4 : 3})};
    group->all_gather(list, at::ones({group->rank() + 1}));
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
    EXPECT_NE(result.ToString().find("rank 1 called"), std::string::npos) << result;
  }
}

// As torch.distributed over gloo: the number of elements counts, not the shape.
TEST(ProcessGroupTensors, BroadcastIntoAnotherShape) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    at::Tensor tensor = group->rank() == 0 ? counting({6}, 0) : at::zeros({2, 3});
    group->broadcast(tensor, 0);
    EXPECT_TRUE(tensor.view({6}).equal(counting({6}, 0)));
  });
}

TEST(ProcessGroupTensors, LazyConjugatesAreResolved) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    const c10::complex<double> value(1, 2 + group->rank());
    at::Tensor tensor = at::full({2}, c10::Scalar(value), at::kComplexDouble).conj();
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.resolve_conj().equal(
        at::full({2}, c10::Scalar(c10::complex<double>(2, -5)), at::kComplexDouble)));
  });
}

TEST(ProcessGroupTensors, TensorsMayBeEmptyOrWithoutDimensions) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    at::Tensor empty = at::zeros({0, 3});
    group->all_reduce(empty);
    group->broadcast(empty, 0);
    group->all_gather({at::zeros({0}), at::zeros({0}), at::zeros({0})}, at::zeros({0}));
    at::Tensor number = at::full({}, group->rank() + 1.0);
    group->all_reduce(number);
    EXPECT_EQ(number.item<double>(), 6);
    at::Tensor all = at::zeros({3}, at::kDouble);
    group->all_gather_into_tensor(all, at::full({}, static_cast<double>(group->rank()), at::kDouble));
    EXPECT_TRUE(all.equal(at::arange(3, at::kDouble)));
  });
}

TEST(ProcessGroupTensors, EveryDtypeAndReduction) {
  Ranks ranks(3);
  const auto input = [](at::ScalarType dtype, int rank) {
    return (at::arange(5, at::kDouble) + rank).to(dtype);
  };
  constexpr ReduceOp kAll[] = {ReduceOp::kSum,  ReduceOp::kProduct, ReduceOp::kMin,  ReduceOp::kMax,
                               ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor, ReduceOp::kAvg};
  for (at::ScalarType dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
        at::kDouble, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    int done = 0;
    for (ReduceOp op : kAll) {
      std::atomic<int> refused{0};
      const auto results = ranks.results([&](const Group& group) {
        at::Tensor tensor = input(dtype, group->rank());
        try {
          group->all_reduce(tensor, op);
        } catch (const Error& error) {
          if (error.status().code() != absl::StatusCode::kInvalidArgument) throw;
          ++refused;
          return;
        }
        const at::Tensor expected =
            testing::reduce_reference({input(dtype, 0), input(dtype, 1), input(dtype, 2)}, op);
        EXPECT_TRUE(tensor.equal(expected)) << to_string(op) << " of " << dtype;
      });
      for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
      EXPECT_TRUE(refused == 0 || refused == 3);
      if (refused == 0) ++done;
    }
    EXPECT_EQ(done, at::isComplexType(dtype) ? 2 : at::isFloatingType(dtype) ? 5 : 7) << dtype;
  }
}

TEST(ProcessGroupTensors, PremultiplicationDoesNotChangeInputs) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    const int rank = group->rank();
    at::Tensor tensor = at::ones({4});
    group->all_reduce(tensor, premul_sum(rank + 2));
    EXPECT_TRUE(tensor.equal(at::full({4}, 5.0)));
    tensor = at::ones({4});
    group->reduce(tensor, 0, premul_sum(0.5));
    EXPECT_TRUE(tensor.equal(at::ones({4})));
    const at::Tensor input = at::ones({2, 4});
    at::Tensor output = at::zeros({1, 4});
    group->reduce_scatter_tensor(output, input, premul_sum(3));
    EXPECT_TRUE(output.equal(at::full({1, 4}, 6.0)));
    EXPECT_TRUE(input.equal(at::ones({2, 4})));
    at::Tensor halves = at::ones({4}, at::kHalf);
    group->all_reduce_async(halves, premul_sum(0.25))->wait();
    EXPECT_TRUE(halves.equal(at::full({4}, 0.5, at::kHalf)));
  });
}

TEST(ProcessGroupTensors, WritingToALeafThatRequiresGradIncrementsItsVersion) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    at::Tensor leaf = at::ones({3}).set_requires_grad(true);
    const auto version = leaf._version();
    group->all_reduce(leaf);
    EXPECT_TRUE(leaf.detach().equal(at::full({3}, 2.0)));
    EXPECT_TRUE(leaf.is_leaf());
    EXPECT_GT(leaf._version(), version);
    // A strided view, written on the group's own thread.
    at::Tensor matrix = at::ones({3, 2}).set_requires_grad(true);
    group->all_reduce_async(matrix.t())->wait();
    group->broadcast(matrix.t(), 0);
    EXPECT_TRUE(matrix.detach().equal(at::full({3, 2}, 2.0)));
    EXPECT_TRUE(c10::GradMode::is_enabled());
  });
}

TEST(ProcessGroupTensors, InferenceTensorsAreWrittenFromAnyThread) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    at::Tensor tensor;
    at::Tensor strided;
    {
      const c10::InferenceMode inference;
      tensor = at::ones({3});
      strided = at::ones({3, 2}).t();
    }
    group->all_reduce(tensor);
    group->all_reduce_async(strided)->wait();
    EXPECT_TRUE(tensor.equal(at::full({3}, 2.0)));
    EXPECT_TRUE(strided.equal(at::full({2, 3}, 2.0)));
  });
}

}  // namespace
}  // namespace gradwire::collectives
