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

// The state of one live context on one worker. Contexts holds it until the context is released; passes and
// handlers that work with it share the ownership.
struct ContextState {
  // `self`: the incarnation of the worker. `unjoined_gradients`: a counter for all contexts of the worker.
  ContextState(const rpc::Id& context, uint64_t self,
               std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients)
      : id(context),
        unjoined_gradients(std::move(unjoined_gradients)),
        active(std::make_shared<ActiveContext>(context, self)) {}

  const rpc::Id id;
  // Number of gradients that ended at tensors which arrived outside every context (unjoined.h).
  const std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients;
  // This context in the frame of the program that opened it.
  const std::shared_ptr<ActiveContext> active;

  Mutex mutex;
  absl::flat_hash_map<uint64_t, std::shared_ptr<SendNode>> send_nodes ABSL_GUARDED_BY(mutex);
  // The last number that was given to a message with tensors that require grad.
  uint64_t messages ABSL_GUARDED_BY(mutex) = 0;
  Gradients gradients ABSL_GUARDED_BY(mutex);
  // Passes of which a message has arrived. Ended passes are kept because their messages may be repeated. At
  // the limit the oldest ended pass is forgotten: a repetition is not expected after that many later passes.
  static constexpr std::size_t kMaxPasses = 256;
  absl::flat_hash_map<rpc::Id, std::shared_ptr<Pass>> passes ABSL_GUARDED_BY(mutex);
  std::deque<rpc::Id> pass_order ABSL_GUARDED_BY(mutex);
  // The context is released: a pass that begins now is aborted.
  bool released ABSL_GUARDED_BY(mutex) = false;
  // The context has passed a step barrier on some worker (autograd.proto, "Optimizer steps").
  bool admitted ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace gradwire::autograd
