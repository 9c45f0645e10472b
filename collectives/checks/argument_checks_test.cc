#include "gradwire/collectives/checks/argument_checks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;

ArgumentChecks::Group cpu_group() { return {.backend = Backend::kCpu, .rank = 1, .ranks = {2, 5, 7}}; }

at::Tensor make(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::zeros(sizes, at::TensorOptions().dtype(dtype));
}

void expect_refused(const absl::Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(ArgumentChecks, RankOfTheWorldIsTranslated) {
  const ArgumentChecks checks(cpu_group());
  EXPECT_EQ(checks.group_rank(2, "src").value(), 0);
  EXPECT_EQ(checks.group_rank(7, "src").value(), 2);
  for (int outside : {-1, 0, 3, 8, 1 << 30}) {
    expect_refused(checks.group_rank(outside, "src").status(), "src is rank");
  }
}

TEST(ArgumentChecks, TensorsThatNoBackendTakesAreRefused) {
  const ArgumentChecks checks(cpu_group());
  EXPECT_TRUE(checks.readable(make({2, 3}), "tensor").ok());
  EXPECT_TRUE(checks.readable(make({}), "tensor").ok());
  EXPECT_TRUE(checks.readable(make({0, 3}), "tensor").ok());
  expect_refused(checks.readable(at::Tensor(), "tensor"), "undefined");
  expect_refused(checks.readable(make({2, 3}).to_sparse(), "tensor"), "not dense");
  const at::Tensor meta = at::empty({2}, at::TensorOptions().device(at::kMeta));
  expect_refused(checks.readable(meta, "tensor"), "takes tensors on cpu");
}

TEST(ArgumentChecks, TensorWhoseElementsShareMemoryCanOnlyBeRead) {
  const ArgumentChecks checks(cpu_group());
  const at::Tensor expanded = make({3, 1}).expand({3, 4});
  EXPECT_TRUE(checks.readable(expanded, "tensor").ok());
  expect_refused(checks.writable(expanded, "tensor"), "share memory");
  EXPECT_TRUE(checks.writable(make({3, 4}).t(), "tensor").ok());
}

TEST(ArgumentChecks, ReductionsFollowTheDtype) {
  const ArgumentChecks checks(cpu_group());
  const auto refuses = [&](const Reduction& op, at::ScalarType dtype) {
    const absl::Status status = checks.reduction(op, make({1}, dtype));
    return status.code() == absl::StatusCode::kInvalidArgument;
  };
  for (at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBand,
                        ReduceOp::kBor, ReduceOp::kBxor}) {
      EXPECT_FALSE(refuses(op, dtype)) << to_string(op) << " of " << dtype;
    }
    EXPECT_TRUE(refuses(ReduceOp::kAvg, dtype)) << dtype;
    EXPECT_TRUE(refuses(premul_sum(2), dtype)) << dtype;
  }
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
      EXPECT_FALSE(refuses(op, dtype)) << to_string(op) << " of " << dtype;
    }
    for (ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) EXPECT_TRUE(refuses(op, dtype));
    EXPECT_FALSE(refuses(premul_sum(2), dtype)) << dtype;
  }
  for (at::ScalarType dtype : {at::kComplexFloat, at::kComplexDouble}) {
    for (ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBand}) {
      EXPECT_TRUE(refuses(op, dtype)) << to_string(op) << " of " << dtype;
    }
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) EXPECT_FALSE(refuses(op, dtype));
    EXPECT_FALSE(refuses(premul_sum(2), dtype));
  }
  Reduction product = premul_sum(2);
  product.op = ReduceOp::kMax;
  EXPECT_TRUE(refuses(product, at::kFloat));
}

TEST(ArgumentChecks, WrongDeviceNamesTheDevicesAndBackendsOfTheGroup) {
  ArgumentChecks::Group group = cpu_group();
  group.served = {{at::kXPU, "fast"}, {at::kCUDA, "nccl"}};
  const ArgumentChecks checks(group);
  expect_refused(checks.readable(make({1}), "tensor"),
                 "on cpu; this group takes tensors on xpu (backend fast) and cuda (backend nccl)");
}

TEST(ArgumentChecks, ListsMatchTheGroupAndTheTensor) {
  const ArgumentChecks checks(cpu_group());
  const at::Tensor like = make({2, 2});
  EXPECT_TRUE(checks.outputs({make({2, 2}), make({2, 2}).t(), make({2, 2})}, like, "list").ok());
  expect_refused(checks.outputs({make({2, 2})}, like, "list"), "list has 1 tensors; the group has 3 ranks");
  expect_refused(checks.outputs({make({2, 2}), make({4}), make({2, 2})}, like, "list"), "list[1]");
  expect_refused(checks.outputs({make({2, 2}), make({2, 2}), make({2, 2}, at::kInt)}, like, "list"),
                 "list[2]");
  expect_refused(checks.inputs({make({2, 2}), at::Tensor(), make({2, 2})}, like, "list"), "undefined");
  expect_refused(checks.root_list({make({2, 2})}, like, /*at_root=*/false, true, "list"),
                 "empty except at the root");
  EXPECT_TRUE(checks.root_list({}, like, /*at_root=*/false, true, "list").ok());
  expect_refused(checks.root_list({}, like, /*at_root=*/true, true, "list"), "0 tensors");
}

TEST(ArgumentChecks, AllToAllListsMayDifferOnlyInShape) {
  const ArgumentChecks checks(cpu_group());
  EXPECT_TRUE(
      checks.all_to_all({make({1}), make({4}), make({0})}, {make({3}), make({4}), make({2, 2})}).ok());
  expect_refused(checks.all_to_all({make({1}), make({5}), make({0})}, {make({3}), make({4}), make({2})}),
                 "itself");
  expect_refused(
      checks.all_to_all({make({1}), make({4}), make({1}, at::kInt)}, {make({3}), make({4}), make({2})}),
      "outputs[2]");
  expect_refused(checks.all_to_all({}, {}), "0 tensors");
  expect_refused(checks.all_to_all({make({1}), make({1}), make({1})}, {}), "inputs has 0");
}

TEST(ArgumentChecks, WholeIsConcatenatedOrStacked) {
  const ArgumentChecks checks(cpu_group());
  const auto check = [&](at::IntArrayRef whole, at::IntArrayRef part) {
    return checks.whole_and_part(make(whole), "output", make(part), "input").ok();
  };
  EXPECT_TRUE(check({6, 5}, {2, 5}));
  EXPECT_TRUE(check({3, 2, 5}, {2, 5}));
  EXPECT_TRUE(check({3}, {}));
  EXPECT_TRUE(check({0, 4}, {0, 4}));
  EXPECT_FALSE(check({2, 15}, {2, 5}));
  EXPECT_FALSE(check({30}, {2, 5}));
  EXPECT_FALSE(check({4, 5}, {2, 5}));
}

TEST(ArgumentChecks, SplitsAddUp) {
  const ArgumentChecks checks(cpu_group());
  EXPECT_EQ(checks.splits(make({6, 2}), {}, "input").value(), std::vector<int64_t>({2, 2, 2}));
  EXPECT_EQ(checks.splits(make({6}), {1, 0, 5}, "input").value(), std::vector<int64_t>({1, 0, 5}));
  expect_refused(checks.splits(make({5}), {}, "input").status(), "equal parts");
  expect_refused(checks.splits(make({5}), {2, 3}, "input").status(), "2 splits");
  expect_refused(checks.splits(make({5}), {2, 2, 2}, "input").status(), "2, 2, 2");
  expect_refused(checks.splits(make({5}), {-1, 3, 3}, "input").status(), "-1, 3, 3");
  const int64_t huge = std::numeric_limits<int64_t>::max();
  expect_refused(checks.splits(make({5}), {huge, huge, 7}, "input").status(), "splits");
  expect_refused(checks.splits(make({}), {}, "input").status(), "no dimension");
}

TEST(ArgumentChecks, TagsAreNotNegative) {
  const ArgumentChecks checks(cpu_group());
  EXPECT_TRUE(checks.tag(0).ok());
  expect_refused(checks.tag(-1), "-1");
}

}  // namespace
}  // namespace gradwire::collectives
