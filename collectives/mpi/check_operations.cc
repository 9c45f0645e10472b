#include "collectives/mpi/check_operations.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

absl::Time soon() { return Clock::system().now() + absl::Seconds(60); }

void expect(const absl::Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(absl::StrCat(what, ": ", status.ToString()));
}

// Small whole numbers, so that every dtype holds every result exactly in whatever order they are combined.
at::Tensor input(int rank, int part, int64_t count, c10::ScalarType dtype) {
  const at::Tensor numbers =
      (at::arange(count, at::kLong) * 7 + rank * 5 + part * 3) % (dtype == at::kBool ? 2 : 4);
  return numbers.to(dtype);
}

class Checker {
 public:
  Checker(GroupBackend& group, int rank, int size, c10::ScalarType dtype, int64_t count)
      : group_(group), rank_(rank), size_(size), dtype_(dtype), count_(count) {}

  void movements() {
    for (int root = 0; root < size_; ++root) {
      at::Tensor tensor = input(rank_, root, count_, dtype_);
      run(group_.broadcast(tensor, root, soon()), "broadcast");
      same(tensor, input(root, root, count_, dtype_), "broadcast");

      Tensors outputs = root == rank_ ? blank(root % 2 == 0) : Tensors();
      run(group_.gather(input(rank_, 0, count_, dtype_), outputs, root, soon()), "gather");
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        same(outputs[i], input(static_cast<int>(i), 0, count_, dtype_), "gather");
      }

      Tensors inputs;
      for (int part = 0; root == rank_ && part < size_; ++part)
        inputs.push_back(input(root, part, count_, dtype_));
      at::Tensor mine = at::zeros({count_}, dtype_);
      run(group_.scatter(mine, inputs, root, soon()), "scatter");
      same(mine, input(root, rank_, count_, dtype_), "scatter");
    }
    for (const bool one_buffer : {false, true}) {
      Tensors outputs = blank(one_buffer);
      run(group_.all_gather(input(rank_, 0, count_, dtype_), outputs, soon()), "all_gather");
      for (int i = 0; i < size_; ++i) {
        same(outputs[static_cast<std::size_t>(i)], input(i, 0, count_, dtype_), "all_gather");
      }
    }
    at::Tensor whole = at::zeros({size_ * count_}, dtype_);
    run(group_.all_gather_into_tensor(whole, input(rank_, 1, count_, dtype_), size_, soon()),
        "all_gather_into_tensor");
    same(whole.narrow(0, (size_ - 1) * count_, count_), input(size_ - 1, 1, count_, dtype_),
         "all_gather_into_tensor");
    all_to_all();
    run(group_.barrier(soon()), "barrier");
    messages();
  }

  void reductions(const Reduction& op) {
    const std::string name = to_string(op.op);
    at::Tensor tensor = input(rank_, 0, count_, dtype_);
    run(group_.all_reduce(tensor, op, soon()), "all_reduce " + name);
    same(tensor, reference(0, op), "all_reduce " + name);

    const int root = size_ - 1;
    tensor = input(rank_, 1, count_, dtype_);
    run(group_.reduce(tensor, root, op, soon()), "reduce " + name);
    same(tensor, rank_ == root ? reference(1, op) : input(rank_, 1, count_, dtype_), "reduce " + name);

    Tensors inputs;
    for (int part = 0; part < size_; ++part) inputs.push_back(input(rank_, part, count_, dtype_));
    at::Tensor output = at::zeros({count_}, dtype_);
    run(group_.reduce_scatter(output, inputs, op, soon()), "reduce_scatter " + name);
    same(output, reference(rank_, op), "reduce_scatter " + name);
    output.zero_();
    run(group_.reduce_scatter_tensor(output, at::cat(inputs), op, size_, soon()),
        "reduce_scatter_tensor " + name);
    same(output, reference(rank_, op), "reduce_scatter_tensor " + name);
  }

 private:
  // Each pair has a size of its own, some none.
  int64_t pair_count(int src, int dst) const { return (src * 2 + dst) % 3 == 0 ? 0 : count_ + src + 2 * dst; }

  void all_to_all() {
    Tensors inputs, outputs;
    for (int i = 0; i < size_; ++i) {
      inputs.push_back(input(rank_, i, pair_count(rank_, i), dtype_));
      outputs.push_back(at::zeros({pair_count(i, rank_)}, dtype_));
    }
    run(group_.all_to_all(outputs, inputs, soon()), "all_to_all");
    for (int i = 0; i < size_; ++i) {
      same(outputs[static_cast<std::size_t>(i)], input(i, rank_, pair_count(i, rank_), dtype_), "all_to_all");
    }
  }

  // Two to the next rank with one tag, which must not overtake one another, and one of any sender with another.
  void messages() {
    const int next = (rank_ + 1) % size_;
    const int last = (rank_ + size_ - 1) % size_;
    at::Tensor first = at::zeros({count_}, dtype_);
    at::Tensor second = at::zeros({count_}, dtype_);
    at::Tensor third = at::zeros({count_}, dtype_);
    std::vector<Future<int>> received = {group_.receive(first, last, 1, soon()),
                                         group_.receive(second, last, 1, soon()),
                                         group_.receive(third, -1, 2, soon())};
    std::vector<Future<void>> sent = {group_.send(input(rank_, 2, count_, dtype_), next, 2, soon()),
                                      group_.send(input(rank_, 0, count_, dtype_), next, 1, soon()),
                                      group_.send(input(rank_, 1, count_, dtype_), next, 1, soon())};
    for (const Future<void>& future : sent) run(future.result(), "send");
    for (const Future<int>& future : received) {
      run(future.result().status(), "receive");
      if (future.wait() != last) throw std::runtime_error("receive: the wrong rank");
    }
    same(first, input(last, 0, count_, dtype_), "first message");
    same(second, input(last, 1, count_, dtype_), "second message");
    same(third, input(last, 2, count_, dtype_), "message from any rank");
  }

  at::Tensor reference(int part, const Reduction& op) {
    const c10::ScalarType wide = c10::isComplexType(dtype_)    ? at::kComplexDouble
                                 : c10::isFloatingType(dtype_) ? at::kDouble
                                                               : dtype_;
    at::Tensor result = input(0, part, count_, dtype_).to(wide);
    for (int rank = 1; rank < size_; ++rank) {
      const at::Tensor other = input(rank, part, count_, dtype_).to(wide);
      switch (op.op) {
        case ReduceOp::kSum:
        case ReduceOp::kAvg:
          result = at::add(result, other);
          break;
        case ReduceOp::kProduct:
          result = at::mul(result, other);
          break;
        case ReduceOp::kMin:
          result = at::minimum(result, other);
          break;
        case ReduceOp::kMax:
          result = at::maximum(result, other);
          break;
        case ReduceOp::kBand:
          result = at::bitwise_and(result, other);
          break;
        case ReduceOp::kBor:
          result = at::bitwise_or(result, other);
          break;
        case ReduceOp::kBxor:
          result = at::bitwise_xor(result, other);
          break;
      }
    }
    if (op.op == ReduceOp::kAvg) result = result / size_;
    return result.to(dtype_);
  }

  // A list for the results: views of one tensor, or tensors of their own.
  Tensors blank(bool one_buffer) {
    if (one_buffer) return at::zeros({size_, count_}, dtype_).unbind(0);
    Tensors list;
    for (int i = 0; i < size_; ++i) list.push_back(at::zeros({count_}, dtype_));
    return list;
  }

  void run(const absl::Status& status, const std::string& what) { expect(status, where(what)); }
  void same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
    if (!at::equal(got, want)) throw std::runtime_error(where(what) + " gives something else");
  }
  std::string where(const std::string& what) const {
    return absl::StrCat(what, " of ", count_, " elements of ", c10::toString(dtype_), " on rank ", rank_,
                        " of ", size_);
  }

  GroupBackend& group_;
  const int rank_;
  const int size_;
  const c10::ScalarType dtype_;
  const int64_t count_;
};

std::vector<ReduceOp> reductions_of(c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return {ReduceOp::kSum, ReduceOp::kAvg};
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};
  if (c10::isFloatingType(dtype)) {
    ops.push_back(ReduceOp::kAvg);
  } else {
    ops.insert(ops.end(), {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor});
  }
  return ops;
}

void check_nan(GroupBackend& group, int rank, int size) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    at::Tensor tensor = at::full({3}, rank, at::kFloat);
    if (rank == size - 1) tensor[1] = std::nan("");
    expect(group.all_reduce(tensor, op, soon()), "all_reduce with a NaN");
    if (tensor.isnan().sum().item<int64_t>() != 1)
      throw std::runtime_error("a NaN is lost in a minimum or maximum");
  }
}

}  // namespace

void check_operations(GroupBackend& group, int rank, int size) {
  for (const c10::ScalarType dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
        at::kDouble, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    for (const int64_t count : {0, 1, 7, 1000, 40000}) {
      Checker checker(group, rank, size, dtype, count);
      checker.movements();
      for (const ReduceOp op : reductions_of(dtype)) checker.reductions(op);
    }
  }
  check_nan(group, rank, size);
}

}  // namespace gradwire::collectives
