#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// Checks the arguments of calls on one group before anything is sent. All errors are InvalidArgument and say
// which argument is wrong and what it is. Thread-safe.
class ArgumentChecks {
 public:
  struct Group {
    Backend backend = Backend::kCpu;
    // In the group.
    int rank = 0;
    // The ranks of the world, ascending.
    std::vector<int> ranks;
    // Which tensors the group takes (with backends of more than one kind: those of each).
    bool takes_cpu = true;
    bool takes_cuda = false;
  };
  using Tensors = std::vector<at::Tensor>;

  explicit ArgumentChecks(Group group);

  int size() const { return static_cast<int>(group_.ranks.size()); }

  // The rank in the group of a rank of the world; `name` is the argument's.
  absl::StatusOr<int> group_rank(int world_rank, absl::string_view name) const;

  // A dense tensor of a device that the group takes.
  absl::Status readable(const at::Tensor& tensor, absl::string_view name) const;
  // That, and no two of its elements share memory.
  absl::Status writable(const at::Tensor& tensor, absl::string_view name) const;
  // The operation has a meaning for the dtype, and the backend can do it.
  absl::Status reduction(const Reduction& op, const at::Tensor& tensor) const;

  // size() writable (or readable) tensors of the dtype, device and number of elements of `like`.
  absl::Status outputs(const Tensors& list, const at::Tensor& like, absl::string_view name) const;
  absl::Status inputs(const Tensors& list, const at::Tensor& like, absl::string_view name) const;
  // As outputs or inputs at the root, empty elsewhere.
  absl::Status root_list(const Tensors& list, const at::Tensor& like, bool at_root, bool written,
                         absl::string_view name) const;
  absl::Status all_to_all(const Tensors& outputs, const Tensors& inputs) const;
  // `whole` has size() times the elements of `part`.
  absl::Status whole_and_part(const at::Tensor& whole, absl::string_view whole_name, const at::Tensor& part,
                              absl::string_view part_name) const;
  // The sizes along dimension 0 of what goes to each rank: `splits`, or equal parts.
  absl::StatusOr<std::vector<int64_t>> splits(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                              absl::string_view name) const;
  // What a rank sends to itself is what it expects, and the rows of both are alike.
  absl::Status rows_to_self(const at::Tensor& output, int64_t output_rows, const at::Tensor& input,
                            int64_t input_rows) const;
  absl::Status tag(int tag) const;
  // Contiguous tensors of one shape and dtype, each on a CUDA device of its own.
  absl::Status one_per_device(const Tensors& tensors) const;
  // For each of `tensors` a list, on its device, of size() times as many.
  absl::Status lists_per_device(const std::vector<Tensors>& lists, const Tensors& tensors) const;

 private:
  absl::Status readable_slow(const at::Tensor& tensor, absl::string_view name) const;
  absl::Status list(const Tensors& list, const at::Tensor& like, bool written, absl::string_view name) const;

  const Group group_;
  // By rank of the world: the rank in the group, or -1.
  std::vector<int> group_rank_of_;
};

}  // namespace gradwire::collectives
