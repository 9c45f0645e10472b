// The ranks exchange their coalesced tensors, and every rank adds all of them up:
//   1. An all-gather of headers: each rank's shape and number of non-zeros.
//   2. Every rank compares the headers. All of them get the same verdict, so no rank waits for values that
//      another rank refuses to send.
//   3. An exchange of indices and values, as one block of bytes for each rank.
//   4. Every rank checks the indices that it has received, and adds the values up in the order of the ranks.
#include "gradwire/collectives/sparse/sparse_all_reduce.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/checks/argument_checks.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

// Sent instead of a number of non-zeros: the rank could not read its tensor.
constexpr int64_t kUnreadable = -1;
// Blocks of values begin at multiples of this, the size of the largest element.
constexpr int64_t kAlignment = 16;

// a * b, or `limit` + 1 if that is larger than `limit`. REQUIRES: no argument is negative.
int64_t product_up_to(int64_t a, int64_t b, int64_t limit) {
  return b != 0 && a > limit / b ? limit + 1 : std::min(a * b, limit + 1);
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The description of a rank's tensor, as it is on the wire.
struct Header {
  int64_t non_zeros = 0;
  int64_t sparse_dimensions = 0;
  int64_t dense_dimensions = 0;
  int64_t dtype = 0;
  int64_t sizes[kMaxSparseDimensions] = {};

  int64_t dimensions() const { return sparse_dimensions + dense_dimensions; }
  // Whether tensors with these headers can be added up.
  bool matches(const Header& other) const {
    return sparse_dimensions == other.sparse_dimensions && dense_dimensions == other.dense_dimensions &&
           dtype == other.dtype && std::equal(std::begin(sizes), std::end(sizes), std::begin(other.sizes));
  }
};
constexpr int64_t kHeaderNumbers = sizeof(Header) / sizeof(int64_t);

// The header of another process may have any numbers: they are printed and used as they are only if they
// match this rank's.
std::string describe(const Header& header) {
  const bool known = header.dtype >= 0 && header.dtype < static_cast<int64_t>(c10::ScalarType::NumOptions);
  const int64_t dimensions = header.sparse_dimensions < 0 || header.dense_dimensions < 0 ||
                                     header.sparse_dimensions > kMaxSparseDimensions ||
                                     header.dense_dimensions > kMaxSparseDimensions
                                 ? 0
                                 : std::min(header.dimensions(), kMaxSparseDimensions);
  return absl::StrCat(known ? c10::toString(static_cast<c10::ScalarType>(header.dtype)) : "unknown dtype",
                      "[", absl::StrJoin(header.sizes, header.sizes + dimensions, ", "), "] with ",
                      header.sparse_dimensions, " sparse dimensions");
}

// This rank's part of one operation.
class SparseSum {
 public:
  SparseSum(RunContext& run, const at::Tensor& tensor, const Reduction& op)
      : run_(run),
        op_(op),
        tensor_(tensor),
        device_(run.staged.contains(tensor.device().type()) ? c10::Device(at::kCPU) : tensor.device()),
        dtype_(tensor.scalar_type()) {}

  absl::Status run() {
    const c10::InferenceMode ordinary(false);
    const c10::NoGradGuard no_grad;
    const absl::Status read = read_own();
    GRADWIRE_RETURN_IF_ERROR(exchange_headers());
    if (!read.ok()) return read;
    GRADWIRE_RETURN_IF_ERROR(check_headers());
    GRADWIRE_RETURN_IF_ERROR(exchange_blocks());
    GRADWIRE_RETURN_IF_ERROR(check_indices());
    write(sum());
    return absl::OkStatus();
  }

 private:
  // Fills own_, indices_ and values_. An error is announced to the others before it is returned.
  absl::Status read_own() {
    own_.sparse_dimensions = tensor_.sparse_dim();
    own_.dense_dimensions = tensor_.dense_dim();
    own_.dtype = static_cast<int64_t>(dtype_);
    std::copy(tensor_.sizes().begin(), tensor_.sizes().end(), own_.sizes);
    try {
      const at::Tensor coalesced = tensor_.detach().coalesce();
      indices_ = coalesced._indices().to(device_).contiguous();
      values_ = coalesced._values();
      if (op_.multiplies) values_ = at::mul(values_, op_.factor);
      values_ = values_.to(device_).contiguous();
      own_.non_zeros = indices_.size(1);
      return absl::OkStatus();
    } catch (...) {
      own_.non_zeros = kUnreadable;
      return status_from_exception(std::current_exception());
    }
  }

  at::Tensor bytes_of(int64_t count) const {
    return at::empty({count}, at::TensorOptions().dtype(at::kByte).device(device_));
  }

  absl::Status exchange_headers() {
    at::Tensor own = at::empty({kHeaderNumbers}, at::kLong);
    std::memcpy(own.mutable_data_ptr(), &own_, sizeof(own_));
    const at::Tensor all = at::empty({run_.size, kHeaderNumbers}, own.options().device(device_));
    GRADWIRE_RETURN_IF_ERROR(operations::all_gather_into_tensor(run_, all, own.to(device_)));
    run_.order_behind_last_step();
    const at::Tensor on_host = all.cpu();
    headers_.resize(static_cast<std::size_t>(run_.size));
    std::memcpy(headers_.data(), on_host.const_data_ptr(), headers_.size() * sizeof(Header));
    return absl::OkStatus();
  }

  // Every rank has the same headers and returns the same verdict.
  absl::Status check_headers() {
    const Header& first = headers_.front();
    for (std::size_t rank = 0; rank < headers_.size(); ++rank) {
      const Header& header = headers_[rank];
      if (header.non_zeros == kUnreadable)
        return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " could not read its sparse tensor"));
      if (header.matches(first)) continue;
      return absl::InvalidArgumentError(absl::StrCat("the ranks' sparse tensors differ: rank ", rank, " has ",
                                                     describe(header), ", rank 0 has ", describe(first)));
    }
    // A rank whose header differs from what this rank sent has been refused above, unless all others differ
    // too or the header was changed on its way.
    if (!own_.matches(first))
      return absl::InvalidArgumentError(
          absl::StrCat("the header of rank 0 differs from this rank's sparse tensor: it has ",
                       describe(first), ", this rank has ", describe(own_)));
    return check_counts();
  }

  // The numbers of non-zeros come from other processes, and memory is allocated for them. The tensors are
  // coalesced, so there are at most as many non-zeros as the sparse dimensions have places.
  absl::Status check_counts() {
    int64_t places = 1, row = static_cast<int64_t>(c10::elementSize(dtype_));
    for (int64_t i = 0; i < own_.dimensions(); ++i) {
      int64_t& product = i < own_.sparse_dimensions ? places : row;
      product = product_up_to(product, own_.sizes[i], kMaxSparseBytes);
    }
    row_bytes_ = row;
    int64_t total = 0;
    for (std::size_t rank = 0; rank < headers_.size(); ++rank) {
      const int64_t count = headers_[rank].non_zeros;
      if (count < 0 || count > places) {
        return absl::InvalidArgumentError(absl::StrCat("invalid number of non-zeros of rank ", rank, ": got ",
                                                       count, ", expected 0 to ", places));
      }
      const int64_t limit = kMaxSparseBytes;
      const int64_t indices = product_up_to(count, own_.sparse_dimensions * 8, limit);
      const int64_t values = product_up_to(count, row, limit);
      total = std::min(total + indices + values + 2 * kAlignment, limit + 1);
      if (total > limit) {
        return absl::InvalidArgumentError(
            absl::StrCat("the sparse tensors are too large: the first ", rank + 1, " ranks have more than ",
                         limit, " bytes of indices and values; reduce dense tensors instead"));
      }
    }
    return absl::OkStatus();
  }

  // The size of a rank's block: its indices, then its values; both are padded.
  int64_t index_bytes(int rank) const { return aligned(non_zeros(rank) * own_.sparse_dimensions * 8); }
  int64_t block_bytes(int rank) const { return index_bytes(rank) + aligned(non_zeros(rank) * row_bytes_); }
  int64_t non_zeros(int rank) const { return headers_[static_cast<std::size_t>(rank)].non_zeros; }

  // Blocks of similar size travel padded in one all-gather, in which each rank writes its block once.
  // Otherwise an all-to-all carries only what there is.
  absl::Status exchange_blocks() {
    int64_t total = 0, largest = 0;
    for (int rank = 0; rank < run_.size; ++rank) {
      total += block_bytes(rank);
      largest = std::max(largest, block_bytes(rank));
    }
    const bool padded = largest * run_.size <= 2 * total;
    const at::Tensor own = bytes_of(padded ? largest : block_bytes(run_.rank));
    own.zero_();
    fill(own);
    if (padded) {
      const at::Tensor all = bytes_of(largest * run_.size);
      GRADWIRE_RETURN_IF_ERROR(operations::all_gather_into_tensor(run_, all, own));
      for (int rank = 0; rank < run_.size; ++rank) blocks_.push_back(all.narrow(0, rank * largest, largest));
    } else {
      for (int rank = 0; rank < run_.size; ++rank) blocks_.push_back(bytes_of(block_bytes(rank)));
      const Tensors inputs(static_cast<std::size_t>(run_.size), own);
      GRADWIRE_RETURN_IF_ERROR(operations::all_to_all(run_, blocks_, inputs));
    }
    run_.order_behind_last_step();
    return absl::OkStatus();
  }

  void fill(const at::Tensor& block) const {
    indices_in(block, run_.rank).copy_(indices_);
    values_in(block, run_.rank).copy_(values_);
  }
  at::Tensor indices_in(const at::Tensor& block, int rank) const {
    const int64_t count = non_zeros(rank);
    return block.narrow(0, 0, count * own_.sparse_dimensions * 8)
        .view(at::kLong)
        .view({own_.sparse_dimensions, count});
  }
  at::Tensor values_in(const at::Tensor& block, int rank) const {
    std::vector<int64_t> sizes = {non_zeros(rank)};
    sizes.insert(sizes.end(), own_.sizes + own_.sparse_dimensions, own_.sizes + own_.dimensions());
    return block.narrow(0, index_bytes(rank), non_zeros(rank) * row_bytes_).view(dtype_).view(sizes);
  }

  // An index outside of the shape would be a wrong address in every use of the result.
  absl::Status check_indices() const {
    for (int rank = 0; rank < run_.size; ++rank) {
      if (non_zeros(rank) == 0 || own_.sparse_dimensions == 0) continue;
      const auto [low, high] = at::aminmax(indices_in(blocks_[static_cast<std::size_t>(rank)], rank), 1);
      const at::Tensor least = low.cpu(), most = high.cpu();
      for (int64_t i = 0; i < own_.sparse_dimensions; ++i) {
        const int64_t first = least.const_data_ptr<int64_t>()[i], last = most.const_data_ptr<int64_t>()[i];
        if (first >= 0 && last < own_.sizes[i]) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", rank, " has an index that is outside of its tensor: got ",
                         first < 0 ? first : last, " in dimension ", i, ", whose size is ", own_.sizes[i]));
      }
    }
    return absl::OkStatus();
  }

  at::Tensor sum() const {
    Tensors indices, values;
    for (int rank = 0; rank < run_.size; ++rank) {
      const at::Tensor& block = blocks_[static_cast<std::size_t>(rank)];
      indices.push_back(indices_in(block, rank));
      values.push_back(values_in(block, rank));
    }
    const bool narrow = dtype_ == at::kHalf || dtype_ == at::kBFloat16;
    at::Tensor all = at::cat(values);
    if (narrow) all = all.to(at::kFloat);
    const at::Tensor added =
        at::_sparse_coo_tensor_unsafe(at::cat(indices, 1), all, tensor_.sizes()).coalesce();
    at::Tensor result = added._values();
    if (op_.op == ReduceOp::kAvg) result = at::div(result, static_cast<double>(run_.size));
    if (narrow) result = result.to(dtype_);
    return at::_sparse_coo_tensor_unsafe(added._indices(), result, tensor_.sizes())._coalesced_(true);
  }

  void write(const at::Tensor& result) const {
    // libtorch allows writing to an inference tensor only in inference mode.
    const c10::InferenceMode inference(tensor_.is_inference());
    const c10::NoGradGuard no_grad;
    at::Tensor into = tensor_;
    into.copy_(result);
  }

  RunContext& run_;
  const Reduction& op_;
  const at::Tensor tensor_;
  // The device of the tensors that the backend gets.
  const c10::Device device_;
  const at::ScalarType dtype_;

  Header own_;
  // This rank's coalesced tensor.
  at::Tensor indices_;
  at::Tensor values_;
  std::vector<Header> headers_;
  // Bytes of the values at one index.
  int64_t row_bytes_ = 0;
  // By rank. Each begins with the bytes that block_bytes() counts.
  Tensors blocks_;
};

}  // namespace

absl::Status all_reduce_sparse(RunContext& run, at::Tensor tensor, const Reduction& op) {
  return SparseSum(run, tensor, op).run();
}

}  // namespace gradwire::collectives
