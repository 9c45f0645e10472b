#include "gradwire/collectives/mpi/oracle.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/collectives/inputs.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor random(int64_t count, c10::ScalarType dtype) {
  switch (class_of(dtype)) {
    case DtypeClass::kBool:
      return at::randint(0, 2, {count}, at::kByte).to(at::kBool);
    case DtypeClass::kFloating:
      return at::randn({count}, at::kFloat).to(dtype);
    case DtypeClass::kComplex:
      return at::randn({count}, dtype);
    default:
      // Any value: a sum that overflows wraps around in both backends.
      return at::randint(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), {count},
                         at::kLong)
          .to(dtype);
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// The maximum difference between two reductions of a few numbers near 1. Both backends round half and
// bfloat16 once, so their results differ by at most one unit in the last place.
double tolerance(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 1.0 / 128;
    case at::kHalf:
      return 1.0 / 1024;
    case at::kDouble:
    case at::kComplexDouble:
      return 1e-13;
    default:
      return 1e-5;
  }
}

class Comparison {
 public:
  Comparison(ProcessGroup& cpu, ProcessGroup& mpi, c10::ScalarType dtype, int64_t count)
      : groups_{&cpu, &mpi}, dtype_(dtype), count_(count), size_(cpu.size()), rank_(cpu.rank()) {}

  void copies() {
    const int next = (rank_ + 1) % size_, before = (rank_ + size_ - 1) % size_;
    for (int root = 0; root < size_; ++root) {
      compare("broadcast", 1, 0,
              [&](ProcessGroup& group, const Tensors& in, const Tensors&) { group.broadcast(in[0], root); });
      compare("gather", 1, size_, [&](ProcessGroup& group, const Tensors& in, const Tensors& out) {
        group.gather(in[0], rank_ == root ? out : Tensors(), root);
      });
      compare("scatter", size_, 1, [&](ProcessGroup& group, const Tensors& in, const Tensors& out) {
        group.scatter(out[0], rank_ == root ? in : Tensors(), root);
      });
    }
    compare("all_gather", 1, size_,
            [](ProcessGroup& group, const Tensors& in, const Tensors& out) { group.all_gather(out, in[0]); });
    compare("all_to_all", size_, size_,
            [](ProcessGroup& group, const Tensors& in, const Tensors& out) { group.all_to_all(out, in); });
    compare("all_gather_into_tensor", 1, 1, [&](ProcessGroup& group, const Tensors& in, Tensors& out) {
      out[0] = at::zeros({size_ * count_}, dtype_);
      group.all_gather_into_tensor(out[0], in[0]);
    });
    compare("all_to_all_single", size_, 1, [](ProcessGroup& group, const Tensors& in, Tensors& out) {
      const at::Tensor whole = at::cat(in);
      out[0] = at::empty_like(whole);
      group.all_to_all_single(out[0], whole);
    });
    compare("send and recv", 1, 1, [&](ProcessGroup& group, const Tensors& in, const Tensors& out) {
      const auto received = group.irecv(out[0], before, 1);
      group.send(in[0], next, 1);
      received->wait();
    });
  }

  void reductions(const Reduction& op) {
    exact_ = class_of(dtype_) == DtypeClass::kInteger || class_of(dtype_) == DtypeClass::kBool ||
             size_ <= 2 || op.op == ReduceOp::kMin || op.op == ReduceOp::kMax;
    by_ = absl::StrCat(" by ", op.multiplies ? "premul_sum" : to_string(op.op));
    compare("all_reduce", 1, 0,
            [&](ProcessGroup& group, const Tensors& in, const Tensors&) { group.all_reduce(in[0], op); });
    compare("reduce", 1, 0, [&](ProcessGroup& group, const Tensors& in, const Tensors&) {
      group.reduce(in[0], size_ - 1, op);
    });
    compare("reduce_scatter", size_, 1, [&](ProcessGroup& group, const Tensors& in, const Tensors& out) {
      group.reduce_scatter(out[0], in, op);
    });
    compare("reduce_scatter_tensor", size_, 1,
            [&](ProcessGroup& group, const Tensors& in, const Tensors& out) {
              group.reduce_scatter_tensor(out[0], at::cat(in), op);
            });
  }

 private:
  // Runs `call` on both groups with the same random inputs, and outputs that are zero, and compares all its
  // tensors afterwards.
  void compare(const std::string& what, int inputs, int outputs,
               const std::function<void(ProcessGroup&, const Tensors&, Tensors&)>& call) {
    Tensors values;
    for (int i = 0; i < inputs; ++i) values.push_back(random(count_, dtype_));
    Tensors results[2];
    for (int i = 0; i < 2; ++i) {
      Tensors in, out;
      for (const at::Tensor& tensor : values) in.push_back(tensor.clone());
      for (int j = 0; j < outputs; ++j) out.push_back(at::zeros({count_}, dtype_));
      call(*groups_[i], in, out);
      results[i] = std::move(in);
      results[i].insert(results[i].end(), out.begin(), out.end());
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      const at::Tensor &ours = results[0][i], &theirs = results[1][i];
      const bool good = exact_ ? same_bits(ours, theirs)
                               : at::allclose(ours, theirs, tolerance(dtype_), size_ * tolerance(dtype_));
      expect(good,
             absl::StrCat(what, by_, " of ", count_, " elements of ", c10::toString(dtype_), " on rank ",
                          rank_, " of ", size_, " differs between the backends cpu and mpi"));
    }
  }

  ProcessGroup* const groups_[2];
  const c10::ScalarType dtype_;
  const int64_t count_;
  const int size_;
  const int rank_;
  bool exact_ = true;
  std::string by_;
};

}  // namespace

void compare_groups(ProcessGroup& cpu, ProcessGroup& mpi, uint64_t seed) {
  at::manual_seed(seed + static_cast<uint64_t>(cpu.rank()));
  std::vector<Reduction> ops(std::begin(kReduceOps), std::end(kReduceOps));
  ops.push_back(premul_sum(0.3));
  for (const c10::ScalarType dtype : kDtypes) {
    for (const int64_t count : {0, 1, 7, 1000, 70001}) {
      Comparison comparison(cpu, mpi, dtype, count);
      comparison.copies();
      for (const Reduction& op : ops) {
        if (reduces(Backend::kMpi, op, class_of(dtype))) comparison.reductions(op);
      }
    }
  }
}

}  // namespace gradwire::collectives
