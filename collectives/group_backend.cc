#include "gradwire/collectives/group_backend.h"

#include <ATen/ops/narrow.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace gradwire::collectives {
namespace {

// Views of the `size` equal parts of a contiguous tensor, each in the shape of `part`.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, const at::Tensor& part, int size) {
  const c10::NoGradGuard no_grad;
  const at::Tensor flat = whole.view({-1});
  std::vector<at::Tensor> parts;
  parts.reserve(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    parts.push_back(flat.narrow(0, i * part.numel(), part.numel()).view(part.sizes()));
  }
  return parts;
}

// Views of the rows that go to, or come from, each rank.
std::vector<at::Tensor> split_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  parts.reserve(splits.size());
  int64_t row = 0;
  for (int64_t rows : splits) {
    parts.push_back(tensor.narrow(0, row, rows));
    row += rows;
  }
  return parts;
}

}  // namespace

absl::Status GroupBackend::all_gather_uneven(at::Tensor tensor, std::vector<at::Tensor> outputs,
                                             absl::Time deadline) {
  std::vector<at::Tensor> inputs(outputs.size(), tensor);
  return all_to_all(std::move(outputs), std::move(inputs), deadline);
}

absl::Status GroupBackend::all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                                  absl::Time deadline) {
  std::vector<at::Tensor> outputs = parts_of(output, input, size);
  return all_gather(std::move(input), std::move(outputs), deadline);
}

absl::Status GroupBackend::reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op,
                                                 int size, absl::Time deadline) {
  std::vector<at::Tensor> inputs = parts_of(input, output, size);
  return reduce_scatter(std::move(output), std::move(inputs), op, deadline);
}

absl::Status GroupBackend::all_to_all_single(at::Tensor output, at::Tensor input,
                                             const std::vector<int64_t>& output_splits,
                                             const std::vector<int64_t>& input_splits, absl::Time deadline) {
  return all_to_all(split_rows(output, output_splits), split_rows(input, input_splits), deadline);
}

absl::Status GroupBackend::together(c10::Device, const std::vector<std::function<absl::Status()>>& calls) {
  for (const std::function<absl::Status()>& call : calls) {
    if (absl::Status status = call(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
