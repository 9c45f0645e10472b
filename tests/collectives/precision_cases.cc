// The cases of the conformance suite for the precision of half and bfloat16, and for calls with tensors that
// differ in shape or layout.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/coalescing.h"
#include "gradwire/tests/collectives/cases.h"
#include "gradwire/tests/collectives/inputs.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

// Values between 0.5 and 1.5 that use all bits of the dtype, different for each rank.
at::Tensor precise(int rank, int64_t count, at::ScalarType dtype) {
  const at::Tensor places = at::arange(count, at::kDouble);
  return ((places * 0.6180339887 + 0.37 * rank).remainder(1.0) + 0.5).to(dtype);
}

at::Tensor exact(const Tensors& all, ReduceOp op) {
  const at::Tensor stack = at::stack(all).to(at::kDouble);
  if (op == ReduceOp::kProduct) return at::prod(stack, 0);
  const at::Tensor sum = at::sum(stack, 0);
  return op == ReduceOp::kAvg ? sum / static_cast<double>(all.size()) : sum;
}

void expect_rounded_once(const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  // The largest error of one rounding, with some room for the float arithmetic.
  const double limit = (got.scalar_type() == at::kHalf ? 1.0 / 2048 : 1.0 / 256) * 1.001;
  const double error = at::abs(got.to(at::kDouble) / wanted - 1).max().item<double>();
  expect(error <= limit, absl::StrCat(what, " is rounded more than once: the relative error is ", error,
                                      ", one rounding is at most ", limit));
}

void check_rounding_of(ProcessGroup& group, at::ScalarType dtype, ReduceOp op, int64_t count) {
  const int size = group.size(), self = group.rank();
  const std::string what =
      absl::StrCat(" by ", to_string(op), " of ", count, " elements of ", c10::toString(dtype));
  Tensors all;
  for (int rank = 0; rank < size; ++rank) all.push_back(precise(rank, count, dtype));
  const at::Tensor wanted = exact(all, op);
  const at::Tensor mine = all[static_cast<std::size_t>(self)];
  at::Tensor tensor = mine.clone();
  group.all_reduce(tensor, op);
  expect_rounded_once(tensor, wanted, "all_reduce" + what);
  tensor = mine.clone();
  group.reduce(tensor, group.ranks().back(), op);
  if (self == size - 1) expect_rounded_once(tensor, wanted, "reduce" + what);
  if (self != size - 1) expect_equal(tensor, mine, "the tensor of another rank after reduce" + what);
  const Tensors list(static_cast<std::size_t>(size), mine);
  group.reduce_scatter(tensor, list, op);
  expect_rounded_once(tensor, wanted, "reduce_scatter" + what);
  group.reduce_scatter_tensor(tensor, at::cat(list), op);
  expect_rounded_once(tensor, wanted, "reduce_scatter_tensor" + what);
}

// Small tensors, which travel together, and large ones, of several dtypes.
void check_coalesced(ProcessGroup& group) {
  const int size = group.size(), self = group.rank();
  CoalescingManager together(group.shared_from_this());
  Tensors got, wanted;
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t count : {int64_t{3}, int64_t{40'000}}) {
      Tensors all;
      for (int rank = 0; rank < size; ++rank) all.push_back(input_of(rank, {count}, dtype));
      got.push_back(all[static_cast<std::size_t>(self)].clone());
      together.broadcast(got.back(), group.ranks().back());
      wanted.push_back(all.back());
      got.push_back(at::zeros({size * count}, dtype));
      together.all_gather_into_tensor(got.back(), all[static_cast<std::size_t>(self)]);
      wanted.push_back(at::cat(all));
      got.push_back(all[static_cast<std::size_t>(self)].clone());
      together.all_reduce(got.back(), ReduceOp::kSum);
      at::Tensor sum = all[0].clone();
      // The sum of bools is "or", as add() of bools.
      for (int rank = 1; rank < size; ++rank) sum = sum + all[static_cast<std::size_t>(rank)];
      wanted.push_back(sum);
    }
  }
  together.start()->wait();
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_equal(got[i], wanted[i],
                 absl::StrCat("coalesced call ", i, ", ", c10::toString(got[i].scalar_type())));
  }
}

// Rank r has r rows.
void check_uneven_gather(ProcessGroup& group) {
  for (const at::ScalarType dtype : kDtypes) {
    Tensors list, wanted;
    for (int rank = 0; rank < group.size(); ++rank) {
      wanted.push_back(input_of(rank, {rank, 3}, dtype));
      list.push_back(at::empty_like(wanted.back()));
    }
    group.all_gather(list, wanted[static_cast<std::size_t>(group.rank())]);
    for (int rank = 0; rank < group.size(); ++rank)
      expect_equal(list[static_cast<std::size_t>(rank)], wanted[static_cast<std::size_t>(rank)],
                   "all_gather of tensors of different shapes");
  }
}

// Rank r has the row r twice, and all have the row `size`.
void check_sparse_sum(ProcessGroup& group) {
  const int64_t size = group.size(), self = group.rank();
  const at::Tensor rows = at::tensor({self, self, size}, at::kLong).view({1, 3});
  at::Tensor tensor = at::_sparse_coo_tensor_unsafe(rows, at::ones({3, 2}), {size + 1, 2});
  group.all_reduce(tensor);
  at::Tensor wanted = at::full({size + 1, 2}, 2.0);
  wanted[size].fill_(static_cast<double>(size));
  expect_equal(tensor.to_dense(), wanted, "sparse all_reduce");
}

// Every rank sends to the next one, both before it receives and at the same time. Each message is larger than
// what a send may buffer.
void check_batch(ProcessGroup& group) {
  if (group.size() < 2) return;
  const auto shared = group.shared_from_this();
  const int size = group.size(), self = group.rank();
  const std::vector<int>& ranks = group.ranks();
  const auto big = [](int rank) { return at::full({1 << 17}, rank, at::kFloat); };
  const at::Tensor got = at::zeros({1 << 17});
  const auto works = batch_isend_irecv(
      {{.tensor = big(self), .peer = ranks[static_cast<std::size_t>((self + 1) % size)], .group = shared},
       {.kind = P2POp::Kind::kReceive,
        .tensor = got,
        .peer = ranks[static_cast<std::size_t>((self + size - 1) % size)],
        .group = shared}});
  for (const auto& work : works) work->wait();
  expect_equal(got, big((self + size - 1) % size), "batch_isend_irecv");
}

}  // namespace

void check_rounding(ProcessGroup& group) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
      for (const int64_t count : {1, 5000, 100'003}) check_rounding_of(group, dtype, op, count);
    }
  }
  // The sum is larger than a half can be, the average is not.
  const at::Tensor large = at::full({100}, 40000.0, at::kHalf);
  group.all_reduce(large, ReduceOp::kAvg);
  expect_equal(large, at::full({100}, 40000.0, at::kHalf), "average of large halves");
}

void check_together(ProcessGroup& group) {
  check_coalesced(group);
  check_uneven_gather(group);
  check_sparse_sum(group);
  check_batch(group);
}

}  // namespace gradwire::collectives
