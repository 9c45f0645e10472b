#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "autograd/active_context.h"
#include "autograd/gradients.h"
#include "autograd/send_node.h"
#include "base/mutex.h"
#include "rpc/id.h"

namespace gradwire::autograd {

class Pass;

// What one worker holds of one live context. Shared by whoever works with it; out of reach once the context
// is released and gone with the last of them.
struct ContextState {
  // `self`: the incarnation of the worker.
  ContextState(const rpc::Id& context, uint64_t self)
      : id(context), active(std::make_shared<const ActiveContext>(ActiveContext{context, self})) {}

  const rpc::Id id;
  const std::shared_ptr<const ActiveContext> active;

  Mutex mutex;
  absl::flat_hash_map<uint64_t, std::shared_ptr<SendNode>> send_nodes ABSL_GUARDED_BY(mutex);
  // Numbers given to messages with tensors that require grad.
  uint64_t messages ABSL_GUARDED_BY(mutex) = 0;
  Gradients gradients ABSL_GUARDED_BY(mutex);
  // Passes of which something was heard, ended ones too: their messages may come again.
  absl::flat_hash_map<rpc::Id, std::shared_ptr<Pass>> passes ABSL_GUARDED_BY(mutex);
  // Out of reach: passes that begin now are dropped.
  bool released ABSL_GUARDED_BY(mutex) = false;
  // Has passed a gate somewhere (autograd.proto, "Optimizer steps").
  bool admitted ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace gradwire::autograd
