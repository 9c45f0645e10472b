#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "gradwire/autograd/context/active_context.h"
#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/autograd/graph/send_node.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

class Pass;

// The state of one live context on one worker. Shared by whoever works with it; out of reach once the context
// is released and gone with the last of them.
struct ContextState {
  // `self`: the incarnation of the worker. `unjoined_gradients`: of all contexts of the worker.
  ContextState(const rpc::Id& context, uint64_t self,
               std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients)
      : id(context),
        unjoined_gradients(std::move(unjoined_gradients)),
        active(std::make_shared<ActiveContext>(context, self)) {}

  const rpc::Id id;
  // Gradients that ended at tensors which arrived outside every context (unjoined.h).
  const std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients;
  // In the frame of the program that opened the context.
  const std::shared_ptr<ActiveContext> active;

  Mutex mutex;
  absl::flat_hash_map<uint64_t, std::shared_ptr<SendNode>> send_nodes ABSL_GUARDED_BY(mutex);
  // Numbers given to messages with tensors that require grad.
  uint64_t messages ABSL_GUARDED_BY(mutex) = 0;
  Gradients gradients ABSL_GUARDED_BY(mutex);
  // Passes of which a message has come, ended ones too: their messages may come again. At the limit the
  // oldest that has ended is forgotten: its messages would have to come again after so many later passes.
  static constexpr std::size_t kMaxPasses = 256;
  absl::flat_hash_map<rpc::Id, std::shared_ptr<Pass>> passes ABSL_GUARDED_BY(mutex);
  std::deque<rpc::Id> pass_order ABSL_GUARDED_BY(mutex);
  // Out of reach: passes that begin now are dropped.
  bool released ABSL_GUARDED_BY(mutex) = false;
  // Has passed a barrier somewhere (autograd.proto, "Optimizer steps").
  bool admitted ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace gradwire::autograd
