#include "gradwire/data_parallel/sync_batch_norm/own_collectives.h"

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::data_parallel {

const GroupMark* mark_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  return dynamic_cast<const GroupMark*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

void refuse_own_collectives(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    const torch::nn::Module& each = *item.value();
    bool found = dynamic_cast<const OwnCollectives*>(&each) != nullptr;
    for (const at::Tensor& tensor : each.parameters(/*recurse=*/false)) {
      found = found || mark_of(tensor) != nullptr;
    }
    for (const at::Tensor& tensor : each.buffers(/*recurse=*/false)) {
      found = found || mark_of(tensor) != nullptr;
    }
    if (!found || !each.is_training()) continue;
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "Join: the module \"", item.key(),
        "\" has collectives in forward and backward, in which a rank without data cannot take part; use "
        "BatchNorm instead of SyncBatchNorm, or call eval() on the module")));
  }
}

}  // namespace gradwire::data_parallel
