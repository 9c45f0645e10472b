// Registers the backend "nccl".
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/collectives/nccl/nccl_group.h"
#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives::nccl {
namespace {

absl::StatusOr<std::unique_ptr<GroupBackend>> make(const BackendContext& context) {
  if (!context.options.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown option of the backend nccl: ", context.options.begin()->first,
                     "; the backend has no options, and NCCL reads its own from the environment (NCCL_...)"));
  }
  auto watchdog = std::static_pointer_cast<Watchdog>(context.world_state);
  if (watchdog == nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(watchdog, make_with_threads<Watchdog>());
  }
  // The group's cpu backend may use the same store, so use a prefix.
  BackendContext own = context;
  own.store = std::make_shared<store::PrefixStore>("nccl", context.store);
  return std::make_unique<NcclGroup>(own, std::move(watchdog));
}

// Problem: kernels of two communicators wait for each other if one GPU starts them in one order and another
// GPU in the other order, and they do not fit on the GPUs together. NCCL can start them in the order in which
// the process has enqueued them, but takes this setting from the environment only. It is set here, during
// static initialisation, because changing the environment later is not safe beside other threads. A value
// that the user has set stays.
[[maybe_unused]] const bool registered = [] {
  (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  register_backend(Backend::kNccl, make);
  return true;
}();

}  // namespace
}  // namespace gradwire::collectives::nccl
