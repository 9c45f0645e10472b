#include "gradwire/collectives/group/consistency.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {
namespace {

// The size of one rank's record. A shorter text is padded with zeros.
constexpr int64_t kRecordBytes = 256;
constexpr std::size_t kMostText = 240;

std::string text_in(const at::Tensor& tensor) {
  const char* data = static_cast<const char*>(tensor.const_data_ptr());
  std::string text(data, strnlen(data, kMostText));
  // The text comes from another process and goes into error messages: replace characters that do not print.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

}  // namespace

std::string describe(const OperationRecord& record) {
  std::string text(name_of(record.operation));
  if (record.dtype != nullptr) {
    const int shown = std::min<int>(record.dimensions, OperationRecord::kMostSizes);
    absl::StrAppend(&text, " ", record.dtype, "[", absl::StrJoin(record.sizes, record.sizes + shown, ", "));
    if (record.dimensions > shown) {
      absl::StrAppend(&text, ", ...: ", static_cast<int>(record.dimensions), " dimensions, ", record.elements,
                      " elements");
    }
    if (record.shape_hash != 0) absl::StrAppend(&text, "; shape ", absl::Hex(record.shape_hash));
    absl::StrAppend(&text, "]");
  }
  if (record.reduction >= 0) {
    absl::StrAppend(&text, " ",
                    record.multiplies ? "premul_sum" : to_string(static_cast<ReduceOp>(record.reduction)));
  }
  if (record.peer >= 0) absl::StrAppend(&text, " root ", record.peer);
  return text;
}

// An all-gather of texts runs before the collective itself. All ranks get all texts, compare them in the same
// way, and so return the same verdict: no rank begins a collective that another rank refuses. The all-gather
// itself has the same form on all ranks, whatever they called.
absl::Status check_consistency(RunContext& run, const OperationRecord& record, uint64_t sequence,
                               c10::Device device) {
  const c10::NoGradGuard no_grad;
  if (run.staged.contains(device.type())) device = c10::Device(at::kCPU);
  const std::string text = absl::StrCat("#", sequence, " ", describe(record)).substr(0, kMostText);
  at::Tensor own = at::empty({kRecordBytes}, at::kByte);
  std::memset(own.mutable_data_ptr(), 0, kRecordBytes);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < run.size; ++rank)
    all.push_back(at::empty({kRecordBytes}, own.options().device(device)));
  GRADWIRE_RETURN_IF_ERROR(
      with_context(operations::all_gather(run, own.to(device), all), "comparing the ranks' calls"));
  if (run.enqueued != nullptr) run.enqueued->order_current_stream();
  run.enqueued = nullptr;
  const std::string first = text_in(all[0].cpu());
  for (int rank = 1; rank < run.size; ++rank) {
    const std::string other = text_in(all[rank].cpu());
    if (other == first) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks' calls differ: rank ", rank, " called ", other, ", rank 0 called ", first));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
