#include "gradwire/collectives/sparse/sparse_all_reduce.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/idle_backend.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using testing::Group;
using ::testing::HasSubstr;
using testing::Ranks;

// A sparse tensor of these sizes with one sparse dimension. The values at each row are `value`.
at::Tensor rows(const std::vector<int64_t>& indices, at::IntArrayRef sizes, double value = 1,
                at::ScalarType dtype = at::kFloat) {
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape[0] = static_cast<int64_t>(indices.size());
  const at::Tensor places = at::tensor(indices, at::kLong).view({1, shape[0]});
  return at::sparse_coo_tensor(places, at::full(shape, value, at::kFloat).to(dtype), sizes);
}

at::Tensor dense(const at::Tensor& sparse) { return sparse.to_dense(); }

TEST(SparseAllReduce, RanksWithDifferentNumbersOfNonZeros) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    // Rank r has the rows 0 to 2r, so rank 0 has one row and rank 2 has five.
    std::vector<int64_t> indices;
    for (int64_t i = 0; i <= 2 * group->rank(); ++i) indices.push_back(i);
    at::Tensor tensor = rows(indices, {6, 2}, group->rank() + 1);
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.is_sparse());
    EXPECT_TRUE(tensor.is_coalesced());
    EXPECT_EQ(tensor._nnz(), 5);
    const at::Tensor expected = at::tensor({6.0f, 5.0f, 5.0f, 3.0f, 3.0f, 0.0f}).view({6, 1}).expand({6, 2});
    EXPECT_TRUE(dense(tensor).equal(expected)) << dense(tensor);
  });
}

TEST(SparseAllReduce, UncoalescedTensorsAndEmptyOnes) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    // Rank 1 has nothing; ranks 0 and 2 have the row 3 twice.
    at::Tensor tensor = group->rank() == 1 ? rows({}, {4, 3}) : rows({3, 0, 3}, {4, 3});
    group->all_reduce(tensor);
    EXPECT_TRUE(tensor.is_coalesced());
    EXPECT_TRUE(dense(tensor).equal(at::tensor({2.0f, 0.0f, 0.0f, 4.0f}).view({4, 1}).expand({4, 3})));
    at::Tensor nothing = rows({}, {4, 3});
    group->all_reduce_async(nothing)->wait();
    EXPECT_EQ(nothing._nnz(), 0);
  });
}

// One rank has nearly all values: the blocks are not padded but travel by an all-to-all.
TEST(SparseAllReduce, RankWithFarMoreValuesThanTheOthers) {
  Ranks ranks(4);
  ranks.run([](const Group& group) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < (group->rank() == 2 ? 5000 : 1); ++i) indices.push_back(i);
    at::Tensor tensor = rows(indices, {5000, 3});
    group->all_reduce(tensor, ReduceOp::kAvg);
    at::Tensor expected = at::full({5000, 3}, 0.25);
    expected[0].fill_(1);
    EXPECT_TRUE(dense(tensor).equal(expected));
  });
}

TEST(SparseAllReduce, SeveralSparseDimensionsAndDenseOnes) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    for (const int64_t sparse_dimensions : {1, 2, 3}) {
      at::Tensor values = at::zeros({4, 3, 2}, at::kDouble);
      values[group->rank()][2][1] = 5;
      values[3][0][0] = 1;
      at::Tensor tensor = values.to_sparse(sparse_dimensions);
      group->all_reduce(tensor, premul_sum(group->rank() + 1));
      EXPECT_EQ(tensor.sparse_dim(), sparse_dimensions);
      at::Tensor expected = at::zeros({4, 3, 2}, at::kDouble);
      expected[0][2][1] = 5;
      expected[1][2][1] = 10;
      expected[3][0][0] = 3;
      EXPECT_TRUE(dense(tensor).equal(expected)) << sparse_dimensions;
    }
    // Without a sparse dimension a tensor has at most one value.
    at::Tensor scalar = at::sparse_coo_tensor(at::zeros({0, 1}, at::kLong), at::full({1, 2}, 4.0), {2});
    group->all_reduce(scalar);
    EXPECT_TRUE(dense(scalar).equal(at::full({2}, 8.0)));
  });
}

TEST(SparseAllReduce, DtypesWithArithmetic) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kInt, at::kLong,
                                       at::kByte, at::kComplexFloat, at::kComplexDouble}) {
      at::Tensor tensor = rows({group->rank(), 3}, {4, 3}, 1, dtype);
      group->all_reduce(tensor);
      EXPECT_EQ(tensor.scalar_type(), dtype);
      const at::Tensor expected = at::tensor({1.0f, 1.0f, 1.0f, 3.0f}).view({4, 1}).expand({4, 3}).to(dtype);
      EXPECT_TRUE(dense(tensor).equal(expected)) << c10::toString(dtype);
    }
    // The sum of bools is "or".
    at::Tensor flags = rows({group->rank(), 3}, {5}, 1, at::kBool);
    group->all_reduce(flags);
    EXPECT_TRUE(flags._values().equal(at::ones({4}, at::kBool)));
  });
}

// 1 + 3 * 2^-11 in half: each addition of 2^-11 alone is lost, together they are not.
TEST(SparseAllReduce, HalfIsAddedUpInFloat) {
  Ranks ranks(4);
  ranks.run([](const Group& group) {
    at::Tensor tensor = rows({0}, {1}, group->rank() == 0 ? 1.0 : 1.0 / 2048, at::kHalf);
    group->all_reduce(tensor);
    EXPECT_EQ(dense(tensor).to(at::kFloat).item<float>(),
              at::full({}, 1 + 3.0f / 2048, at::kHalf).item<float>());
    EXPECT_GT(dense(tensor).item<float>(), 1.0f);
  });
}

TEST(SparseAllReduce, AllRanksGetTheSameBits) {
  Ranks ranks(4);
  std::vector<at::Tensor> results(4);
  ranks.run([&](const Group& group) {
    at::Tensor tensor = rows({7, group->rank(), 7}, {8, 2}, 0.1 * (group->rank() + 1));
    group->all_reduce(tensor);
    results[static_cast<std::size_t>(group->rank())] = tensor;
  });
  for (const at::Tensor& result : results) {
    EXPECT_TRUE(result._indices().equal(results[0]._indices()));
    EXPECT_TRUE(result._values().equal(results[0]._values()));
  }
}

TEST(SparseAllReduce, InferenceTensorsAndLeaves) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    at::Tensor tensor;
    {
      const c10::InferenceMode mode;
      tensor = rows({group->rank()}, {2, 2});
    }
    group->all_reduce(tensor);
    EXPECT_TRUE(dense(tensor).equal(at::ones({2, 2})));
    at::Tensor leaf = rows({group->rank()}, {2, 2}).requires_grad_();
    group->all_reduce_async(leaf)->wait();
    EXPECT_TRUE(leaf.requires_grad());
    EXPECT_TRUE(leaf.is_leaf());
    EXPECT_TRUE(dense(leaf.detach()).equal(at::ones({2, 2})));
  });
}

TEST(SparseAllReduce, SameResultOverMessages) {
  Ranks ranks(3, {.options = {{"shared_memory", "off"}}});
  ranks.run([](const Group& group) {
    at::Tensor tensor = rows({group->rank(), 3}, {4, 100}, 2);
    group->all_reduce(tensor);
    EXPECT_TRUE(dense(tensor).select(1, 99).equal(at::tensor({2.0f, 2.0f, 2.0f, 6.0f})));
  });
}

// Every rank gets an error that names the rank that differs, and the group stays usable.
void expect_refused(const std::function<at::Tensor(int rank)>& make, const std::string& text) {
  Ranks ranks(3, {.timeout = absl::Seconds(60)});
  const auto results = ranks.results([&](const Group& group) {
    at::Tensor tensor = make(group->rank());
    group->all_reduce(tensor);
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
    EXPECT_THAT(result.ToString(), AllOf(HasSubstr("all_reduce_sparse #"), HasSubstr(text)));
  }
  ranks.run([](const Group& group) {
    at::Tensor tensor = rows({0}, {2});
    group->all_reduce(tensor);
    EXPECT_TRUE(dense(tensor).equal(at::tensor({3.0f, 0.0f})));
  });
}

TEST(SparseAllReduce, RankWithAnotherShapeIsNamed) {
  expect_refused(
      [](int rank) {
        return rows({0}, {4, rank == 2 ? 3 : 2});
      },
      "rank 2 has Float[4, 3] with 1 sparse dimensions, rank 0 has Float[4, 2]");
  expect_refused([](int rank) { return rows({0}, {rank == 0 ? 5 : 4}); }, "rank 1 has Float[4]");
}

TEST(SparseAllReduce, RankWithAnotherDtypeOrSplitIsNamed) {
  expect_refused([](int rank) { return rows({0}, {4}, 1, rank == 1 ? at::kDouble : at::kFloat); },
                 "rank 1 has Double[4]");
  expect_refused(
      [](int rank) {
        return at::ones({2, 2}).to_sparse(rank == 2 ? 2 : 1);
      },
      "rank 2 has Float[2, 2] with 2 sparse dimensions");
}

TEST(SparseAllReduce, IndexOutsideOfTheShapeIsNamed) {
  // Out of range in the same way as a tensor made without checks.
  const auto make = [](int rank) {
    at::Tensor tensor = rows({1}, {4});
    if (rank == 1) tensor._indices().fill_(9);
    return tensor;
  };
  expect_refused(make,
                 "rank 1 has an index that is outside of its tensor: got 9 in dimension 0, whose size is 4");
}

TEST(SparseAllReduce, OtherReductionsAndLayoutsAreRefused) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    const auto refused = [&](const std::function<void()>& call, const std::string& text) {
      try {
        call();
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    at::Tensor tensor = rows({0}, {2, 2});
    refused([&] { group->all_reduce(tensor, ReduceOp::kMax); }, "max of a sparse tensor is not supported");
    refused([&] { group->all_reduce(rows({0}, {2}, 1, at::kInt), ReduceOp::kAvg); }, "have an average");
    refused([&] { group->broadcast(tensor, 0); }, "only all_reduce takes a sparse COO one");
    refused([&] { group->all_reduce(at::ones({2, 2}).to_sparse_csr()); }, "not dense (SparseCsr)");
    group->barrier();
  });
}

TEST(SparseAllReduce, ConsistencyCheckNamesARankWithADenseTensor) {
  Ranks ranks(2, {.timeout = absl::Seconds(60), .check_consistency = true});
  const auto results = ranks.results([](const Group& group) {
    at::Tensor tensor = rows({0}, {2});
    group->all_reduce(group->rank() == 1 ? dense(tensor) : tensor);
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result.ToString(),
                AllOf(HasSubstr("rank 1 called"), HasSubstr("all_reduce_sparse Float[2]")));
  }
}

TEST(SparseAllReduce, RankThatDoesNotComeIsNamedAtTheTimeout) {
  Ranks ranks(3, {.timeout = absl::Seconds(2)});
  const auto results = ranks.results([](const Group& group) {
    at::Tensor tensor = rows({0}, {2});
    if (group->rank() != 1) group->all_reduce(tensor);
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded) << results[0];
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 1"));
}

TEST(SparseAllReduce, RankThatLeavesIsNamed) {
  Ranks ranks(2, {.timeout = absl::Seconds(60)});
  const auto results = ranks.results([](const Group& group) {
    at::Tensor tensor = rows({0}, {2});
    if (group->rank() == 1) return group->destroy();
    group->all_reduce(tensor);
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 1"));
}

// A peer that sends its header with other operations of the group. No tensor of this shape has as many
// non-zeros as it reports.
TEST(SparseAllReduce, RankThatReportsAMalformedNumberOfNonZerosIsNamed) {
  for (const int64_t reported : {int64_t{-2}, int64_t{6}, int64_t{1} << 60}) {
    Ranks ranks(2, {.timeout = absl::Seconds(60)});
    const auto results = ranks.results([&](const Group& group) {
      if (group->rank() == 0) return group->all_reduce(at::ones({5}).to_sparse());
      at::Tensor headers = at::zeros({2, 4 + kMaxSparseDimensions}, at::kLong);
      const at::Tensor own = at::zeros({4 + kMaxSparseDimensions}, at::kLong);
      const int64_t header[] = {reported, 1, 0, static_cast<int64_t>(at::kFloat), 5};
      std::copy(std::begin(header), std::end(header), own.mutable_data_ptr<int64_t>());
      group->all_gather_into_tensor(headers, own);
    });
    EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument) << results[0];
    EXPECT_THAT(results[0].ToString(), HasSubstr("invalid number of non-zeros of rank 1"));
    EXPECT_TRUE(results[1].ok()) << results[1];
  }
}

// A backend in which the other rank of two is hostile. It sends what this rank sends, but the test changes
// its header, and its indices and values may have any bits.
class HostileBackend : public testing::IdleBackend {
 public:
  HostileBackend(std::function<void(int64_t* header)> change, bool wild)
      : change_(std::move(change)), wild_(wild) {}

  absl::Status all_gather_into_tensor(at::Tensor output, at::Tensor input, int, absl::Time) override {
    for (int i = 0; i < 2; ++i) output.view({2, -1})[i].copy_(input.view({-1}));
    if (input.scalar_type() == at::kLong) {
      change_(output.mutable_data_ptr<int64_t>() + input.numel());
    } else if (wild_) {
      output.view({2, -1})[1].fill_(0x7f);
    }
    return absl::OkStatus();
  }

 private:
  const std::function<void(int64_t*)> change_;
  const bool wild_;
};

absl::Status sum_with_hostile_rank(
    const at::Tensor& tensor, std::function<void(int64_t* header)> change = [](int64_t*) {},
    bool wild = false) {
  HostileBackend backend(std::move(change), wild);
  RunContext run{backend, absl::InfiniteFuture(), StagedDevices(), 0, 2, nullptr};
  return all_reduce_sparse(run, tensor, ReduceOp::kSum);
}

TEST(SparseAllReduce, HostileHeadersAreRefusedBeforeMemoryIsAllocated) {
  constexpr int kNonZeros = 0, kSparse = 1, kDense = 2, kDtype = 3, kSizes = 4;
  const at::Tensor tensor = rows({0}, {1 << 20, 4});
  EXPECT_TRUE(sum_with_hostile_rank(tensor).ok());
  const struct {
    int place;
    int64_t value;
    const char* text;
  } cases[] = {
      {kNonZeros, -1, "rank 1 could not read"},
      {kNonZeros, -2, "invalid number of non-zeros of rank 1: got -2"},
      {kNonZeros, (1 << 20) + 1, "expected 0 to 1048576"},
      {kNonZeros, INT64_MAX, "invalid number of non-zeros of rank 1"},
      {kSparse, INT64_MAX, "the ranks' sparse tensors differ: rank 1"},
      {kSparse, -5, "the ranks' sparse tensors differ: rank 1"},
      {kDense, INT64_MIN, "the ranks' sparse tensors differ: rank 1"},
      {kDtype, 12345, "rank 1 has unknown dtype"},
      {kSizes, INT64_MIN, "the ranks' sparse tensors differ: rank 1"},
  };
  for (const auto& each : cases) {
    const absl::Status status =
        sum_with_hostile_rank(tensor, [&](int64_t* header) { header[each.place] = each.value; });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << each.text;
    EXPECT_THAT(status.ToString(), HasSubstr(each.text));
  }
}

TEST(SparseAllReduce, HostileIndicesAreRefused) {
  EXPECT_THAT(sum_with_hostile_rank(
                  rows({0}, {1 << 20, 4}), [](int64_t* header) { header[0] = 2000; }, /*wild=*/true)
                  .ToString(),
              HasSubstr("rank 1 has an index that is outside of its tensor"));
}

TEST(SparseAllReduce, TooManyBytesAreRefused) {
  const absl::Status status = sum_with_hostile_rank(rows({0}, {int64_t{1} << 40}),
                                                    [](int64_t* header) { header[0] = int64_t{1} << 33; });
  EXPECT_THAT(status.ToString(),
              HasSubstr("the sparse tensors are too large: the first 2 ranks have more than"));
}

}  // namespace
}  // namespace gradwire::collectives
