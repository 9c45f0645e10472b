// The cases of the conformance suite that check reductions and copies.
#include "gradwire/tests/collectives/cases.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/tests/collectives/inputs.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;
using testing::reduce_reference;

const std::vector<int64_t> kShapes[] = {{}, {0}, {1}, {5}, {3, 4}, {2, 0, 3}, {7, 129}};

std::string name_of_reduction(const Reduction& op) { return op.multiplies ? "premul_sum" : to_string(op.op); }

// Checks the reductions with one operation, dtype and shape.
class ReductionCase {
 public:
  ReductionCase(ProcessGroup& group, const Reduction& op, c10::ScalarType dtype, std::vector<int64_t> shape)
      : group_(group), op_(op), dtype_(dtype), shape_(std::move(shape)) {}

  void check() {
    const int size = group_.size(), self = group_.rank();
    const at::Tensor mine = input_of(self, shape_, dtype_);
    Tensors all, inputs, theirs;
    for (int rank = 0; rank < size; ++rank) {
      all.push_back(input_of(rank, shape_, dtype_));
      inputs.push_back(input_of(self, shape_, dtype_, rank));
      theirs.push_back(input_of(rank, shape_, dtype_, self));
    }
    at::Tensor tensor = mine.clone();
    group_.all_reduce(tensor, op_);
    same(tensor, reduced(all), "all_reduce");
    const int root = static_cast<int>(shape_.size()) % size;
    tensor = mine.clone();
    group_.reduce(tensor, group_.ranks()[root], op_);
    same(tensor, self == root ? reduced(all) : mine, "reduce");
    tensor = at::zeros(shape_, dtype_);
    group_.reduce_scatter(tensor, inputs, op_);
    same(tensor, reduced(theirs), "reduce_scatter");
    if (shape_.empty()) return;
    tensor = at::zeros(shape_, dtype_);
    group_.reduce_scatter_tensor(tensor, at::cat(inputs), op_);
    same(tensor, reduced(theirs), "reduce_scatter_tensor");
  }

 private:
  at::Tensor reduced(Tensors tensors) const {
    if (op_.multiplies) {
      for (at::Tensor& tensor : tensors) tensor = tensor * op_.factor;
    }
    return reduce_reference(tensors, op_.op);
  }
  void same(const at::Tensor& got, const at::Tensor& wanted, const char* call) const {
    expect_equal(got, wanted,
                 absl::StrCat(call, " by ", name_of_reduction(op_), " of ", c10::toString(dtype_), " ",
                              c10::str(shape_)));
  }

  ProcessGroup& group_;
  const Reduction op_;
  const c10::ScalarType dtype_;
  const std::vector<int64_t> shape_;
};

// Checks that an unsupported reduction is refused. Only the last rank calls it: the refusal must not need the
// others.
void check_refused(ProcessGroup& group, const Reduction& op, c10::ScalarType dtype) {
  if (group.rank() != group.size() - 1) return;
  const std::string what = absl::StrCat(name_of_reduction(op), " of ", c10::toString(dtype));
  const at::Tensor before = at::zeros({3}, at::kLong).to(dtype);
  const Tensors list(group.ranks().size(), before);
  const std::function<void()> calls[] = {
      [&] { group.all_reduce(before, op); }, [&] { group.reduce(before, group.ranks()[0], op); },
      [&] { group.reduce_scatter(before, list, op); },
      [&] { group.reduce_scatter_tensor(before, at::zeros({3 * group.size()}, at::kLong).to(dtype), op); }};
  for (const auto& call : calls) {
    bool refused = false;
    try {
      call();
    } catch (const Error& error) {
      refused = error.status().code() == absl::StatusCode::kInvalidArgument;
    }
    expect(refused, what + " was not refused");
  }
}

}  // namespace

void check_reductions(ProcessGroup& group) {
  std::vector<Reduction> ops(std::begin(kReduceOps), std::end(kReduceOps));
  ops.push_back(premul_sum(3));
  for (const Reduction& op : ops) {
    for (const c10::ScalarType dtype : kDtypes) {
      if (!reduces(group.backend(), op, class_of(dtype))) {
        check_refused(group, op, dtype);
        continue;
      }
      for (const auto& shape : kShapes) ReductionCase(group, op, dtype, shape).check();
    }
    for (const c10::ScalarType dtype : kOtherDtypes) check_refused(group, op, dtype);
  }
}

namespace {

// The number of rows that rank `src` sends to rank `dst`. It differs between pairs, and is 0 for some of
// them.
int64_t rows_between(int src, int dst) { return (src * 2 + dst) % 3 == 0 ? 0 : 1 + src + 2 * dst; }

void check_uneven_exchange(ProcessGroup& group, c10::ScalarType dtype) {
  const int size = group.size(), self = group.rank();
  Tensors inputs, outputs, wanted;
  std::vector<int64_t> in_rows, out_rows;
  for (int rank = 0; rank < size; ++rank) {
    in_rows.push_back(rows_between(self, rank));
    out_rows.push_back(rows_between(rank, self));
    inputs.push_back(input_of(self, {in_rows.back(), 3}, dtype, rank));
    outputs.push_back(input_of(0, {out_rows.back(), 3}, dtype));
    wanted.push_back(input_of(rank, {out_rows.back(), 3}, dtype, self));
  }
  group.all_to_all(outputs, inputs);
  for (int rank = 0; rank < size; ++rank) expect_equal(outputs[rank], wanted[rank], "uneven all_to_all");
  Tensors gathered, blocks;
  // One kind of block is larger than any buffer between the ranks.
  for (const int64_t columns : {int64_t{1}, dtype == at::kFloat ? int64_t{1} << 18 : int64_t{5}}) {
    gathered.clear();
    blocks.clear();
    for (int rank = 0; rank < size; ++rank) {
      blocks.push_back(input_of(rank, {rank % 3, columns}, dtype));
      gathered.push_back(at::zeros_like(blocks.back()));
    }
    group.all_gather(gathered, blocks[static_cast<std::size_t>(self)]);
    for (int rank = 0; rank < size; ++rank) expect_equal(gathered[rank], blocks[rank], "uneven all_gather");
  }
  at::Tensor output = at::zeros_like(at::cat(wanted));
  group.all_to_all_single(output, at::cat(inputs), out_rows, in_rows);
  expect_equal(output, at::cat(wanted), "uneven all_to_all_single");
}

void check_copies_of(ProcessGroup& group, c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  const int size = group.size(), self = group.rank();
  const auto same = [&](const at::Tensor& got, const at::Tensor& wanted, const char* call) {
    expect_equal(got, wanted, absl::StrCat(call, " of ", c10::toString(dtype), " ", c10::str(shape)));
  };
  Tensors all, inputs, exchanged;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(input_of(rank, shape, dtype));
    inputs.push_back(input_of(self, shape, dtype, rank));
    exchanged.push_back(input_of(rank, shape, dtype, self));
  }
  const auto blank = [&](bool one_buffer) {
    if (one_buffer) {
      std::vector<int64_t> sizes = {size};
      sizes.insert(sizes.end(), shape.begin(), shape.end());
      return at::zeros(sizes, dtype).unbind(0);
    }
    Tensors list;
    for (int rank = 0; rank < size; ++rank) list.push_back(at::zeros(shape, dtype));
    return list;
  };
  for (int root = 0; root < size; ++root) {
    const int world_root = group.ranks()[root];
    at::Tensor tensor = all[self].clone();
    group.broadcast(tensor, world_root);
    same(tensor, all[root], "broadcast");
    Tensors list = self == root ? blank(root % 2 == 0) : Tensors();
    group.gather(all[self], list, world_root);
    for (std::size_t i = 0; i < list.size(); ++i) same(list[i], all[i], "gather");
    tensor = at::zeros(shape, dtype);
    group.scatter(tensor, self == root ? all : Tensors(), world_root);
    same(tensor, all[self], "scatter");
  }
  for (const bool one_buffer : {false, true}) {
    Tensors list = blank(one_buffer);
    group.all_gather(list, all[self]);
    for (int i = 0; i < size; ++i) same(list[i], all[i], "all_gather");
  }
  Tensors list = blank(false);
  group.all_to_all(list, inputs);
  for (int i = 0; i < size; ++i) same(list[i], exchanged[i], "all_to_all");
  if (shape.empty()) return;
  at::Tensor flat = at::cat(blank(false));
  group.all_gather_into_tensor(flat, all[self]);
  same(flat, at::cat(all), "all_gather_into_tensor");
  group.all_to_all_single(flat, at::cat(inputs));
  same(flat, at::cat(exchanged), "all_to_all_single");
}

}  // namespace

void check_copies(ProcessGroup& group) {
  for (const c10::ScalarType dtype : kDtypes) {
    for (const auto& shape : kShapes) check_copies_of(group, dtype, shape);
    check_uneven_exchange(group, dtype);
  }
  for (const c10::ScalarType dtype : kOtherDtypes) {
    const at::Tensor wanted = input_of(group.size() - 1, {5}, at::kFloat).to(dtype);
    const at::Tensor tensor = input_of(group.rank(), {5}, at::kFloat).to(dtype);
    group.broadcast(tensor, group.ranks().back());
    expect_equal(tensor.to(at::kComplexFloat), wanted.to(at::kComplexFloat),
                 absl::StrCat("broadcast of ", c10::toString(dtype)));
  }
}

void check_nan(ProcessGroup& group) {
  for (const c10::ScalarType dtype : {at::kHalf, at::kFloat, at::kDouble}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const at::Tensor tensor = at::full({37}, group.rank(), dtype);
      if (group.rank() == group.size() / 2) tensor[11] = std::numeric_limits<double>::quiet_NaN();
      group.all_reduce(tensor, op);
      expect(tensor.isnan().sum().item<int64_t>() == 1,
             "NaN in the input but not in the result of " + to_string(op));
      const double wanted = op == ReduceOp::kMin ? 0 : group.size() - 1;
      expect(tensor[12].item<double>() == wanted, to_string(op) + " of an element next to a NaN");
    }
  }
}

void check_strided_and_long(ProcessGroup& group) {
  const int size = group.size(), self = group.rank();
  const at::Tensor base = at::zeros({6, 10}, at::kDouble);
  const at::Tensor strided = base.t().slice(0, 0, 10, 2);
  strided.copy_(at::arange(30, at::kDouble).reshape({5, 6}) * (self + 1));
  group.all_reduce(strided);
  expect_equal(strided, at::arange(30, at::kDouble).reshape({5, 6}) * (size * (size + 1) / 2.0), "strided");
  expect(base.slice(1, 1, 10, 2).abs().sum().item<double>() == 0,
         "all_reduce of a strided tensor changed memory between its elements");
  // The tensor is larger than any internal buffer, and its size is not a multiple of a power of two.
  const int64_t count = (int64_t{5} << 20) / 8 + 3;
  const at::Tensor numbers = at::arange(count, at::kLong);
  at::Tensor tensor = numbers + self;
  group.all_reduce(tensor);
  expect_equal(tensor, numbers * size + size * (size - 1) / 2, "long all_reduce");
  tensor = numbers + self;
  group.broadcast(tensor, group.ranks().back());
  expect_equal(tensor, numbers + size - 1, "long broadcast");
  at::Tensor output = at::empty({size * count}, at::kLong);
  group.all_gather_into_tensor(output, numbers + self);
  for (int rank = 0; rank < size; ++rank) {
    expect_equal(output.slice(0, rank * count, (rank + 1) * count), numbers + rank, "long gather");
  }
}

}  // namespace gradwire::collectives
