#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// The maximum number of dimensions of a sparse tensor.
inline constexpr int64_t kMaxSparseDimensions = 28;

// A type of device whose tensors a group accepts.
struct ServedDevice {
  c10::DeviceType type = c10::DeviceType::CPU;
  // The name of the backend that gets the tensors.
  std::string backend = "cpu";
  // Whether the tensors are copied to the memory of the host for the backend, and back.
  bool staged = false;
};

// Checks the arguments of calls on one group before anything is sent. All errors are InvalidArgument and say
// which argument is wrong and what it is. Thread-safe.
class ArgumentChecks {
 public:
  struct Group {
    Backend backend = Backend::kCpu;
    // This process's rank in the group.
    int rank = 0;
    // The members' ranks in the world, ascending.
    std::vector<int> ranks;
    std::vector<ServedDevice> served = {ServedDevice()};
  };
  using Tensors = std::vector<at::Tensor>;

  explicit ArgumentChecks(Group group);

  // This process's rank in the group.
  int rank() const { return group_.rank; }
  int size() const { return static_cast<int>(group_.ranks.size()); }

  // Returns the rank in the group of a rank of the world; -1 if that rank is not a member.
  int find_rank(int world_rank) const {
    const bool known = world_rank >= 0 && static_cast<std::size_t>(world_rank) < group_rank_of_.size();
    return known ? group_rank_of_[static_cast<std::size_t>(world_rank)] : -1;
  }
  // As find_rank; an error if that rank is not a member. `name`, here and below: the name of the argument.
  absl::StatusOr<int> group_rank(int world_rank, absl::string_view name) const;

  // Checks that the tensor is dense and on a device that the group accepts.
  absl::Status readable(const at::Tensor& tensor, absl::string_view name) const {
    return is_usual(tensor) ? absl::OkStatus() : readable_slow(tensor, name);
  }
  // As readable; checks also that no two elements of the tensor share memory.
  absl::Status writable(const at::Tensor& tensor, absl::string_view name) const {
    // A contiguous tensor has no two elements at one address, so the more expensive check is not needed.
    return is_usual(tensor) && tensor.is_contiguous() ? absl::OkStatus() : writable_slow(tensor, name);
  }
  // Checks that the tensor is sparse COO, on a device that the group accepts, and that this reduction of it
  // is defined: a sum or an average.
  absl::Status sparse_reduction(const Reduction& op, const at::Tensor& tensor, absl::string_view name) const;
  // Checks that the operation is defined for the dtype.
  absl::Status reduction(const Reduction& op, const at::Tensor& tensor) const;

  // Checks that the list has size() writable tensors of the dtype, device and shape of `like`.
  absl::Status outputs(const Tensors& list, const at::Tensor& like, absl::string_view name) const;
  // As outputs, but the shapes may differ; only the entry of this rank has the shape of `like`.
  absl::Status outputs_of_ranks(const Tensors& list, const at::Tensor& like, absl::string_view name) const;
  // As outputs, but the tensors need only be readable.
  absl::Status inputs(const Tensors& list, const at::Tensor& like, absl::string_view name) const;
  // At the root: as outputs (`written`) or inputs. Elsewhere: checks that the list is empty.
  absl::Status root_list(const Tensors& list, const at::Tensor& like, bool at_root, bool written,
                         absl::string_view name) const;
  // Checks the lists of an all_to_all: their length, dtype and device, and this rank's message to itself.
  absl::Status all_to_all(const Tensors& outputs, const Tensors& inputs) const;
  // Checks that `whole` is size() times `part`, concatenated along dimension 0 or stacked.
  absl::Status whole_and_part(const at::Tensor& whole, absl::string_view whole_name, const at::Tensor& part,
                              absl::string_view part_name) const;
  // Returns the number of rows (entries along dimension 0) for each rank: `splits`, or equal parts if
  // `splits` is empty. Checks that their sum is the number of rows of the tensor.
  absl::StatusOr<std::vector<int64_t>> splits(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                              absl::string_view name) const;
  // Checks that this rank sends itself as many rows as it expects, and that the rows of both tensors have one
  // shape.
  absl::Status rows_to_self(const at::Tensor& output, int64_t output_rows, const at::Tensor& input,
                            int64_t input_rows) const;
  // Checks that the tag is not negative.
  absl::Status tag(int tag) const { return tag >= 0 ? absl::OkStatus() : refuse_tag(tag); }
  // Checks that the tensors are contiguous, have one shape and dtype, and are on different accelerators of
  // one type.
  absl::Status one_per_device(const Tensors& tensors) const;
  // Checks that there is one list for each of `tensors`, and that the list has size() * tensors.size()
  // tensors, which are contiguous and on the same device as that tensor.
  absl::Status lists_per_device(const std::vector<Tensors>& lists, const Tensors& tensors) const;

 private:
  // Whether this is a dense tensor in the memory of the host, and the group accepts these. Every collective
  // asks this for each tensor, so it is in the header. The slow functions repeat the check, and find the
  // reason of a refusal.
  bool is_usual(const at::Tensor& tensor) const {
    if (!tensor.defined() || !takes_cpu_) return false;
    const c10::DispatchKeySet special({c10::DispatchKey::Quantized, c10::DispatchKey::MkldnnCPU});
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    return impl.is_cpu() && impl.layout() == at::kStrided && !impl.key_set().has_any(special);
  }
  absl::Status readable_slow(const at::Tensor& tensor, absl::string_view name) const;
  absl::Status writable_slow(const at::Tensor& tensor, absl::string_view name) const;
  static absl::Status refuse_tag(int tag);
  absl::Status list(const Tensors& list, const at::Tensor& like, bool written, absl::string_view name) const;

  const Group group_;
  const bool takes_cpu_;
  // The rank in the group by the rank in the world; -1 for a rank that is not a member.
  std::vector<int> group_rank_of_;
};

}  // namespace gradwire::collectives
