#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/step_barrier_driver.h"
#include "gradwire/autograd/pass/pass.h"
#include "gradwire/base/mutex.h"

namespace gradwire::autograd {

// Finds and begins the passes in which one agent takes part. The passes are stored in their contexts.
// Thread-safe.
class PassTable {
 public:
  // `agent` and `contexts` must outlive this object.
  PassTable(rpc::AgentServices& agent, Contexts& contexts, const std::shared_ptr<StepBarrierDriver>& barrier)
      : agent_(agent), contexts_(contexts), barrier_(barrier) {}

  // Begins a pass of which this worker is the root.
  std::shared_ptr<Pass> begin(const std::shared_ptr<ContextState>& context, proto::Pass header,
                              absl::Time deadline) const;
  // Returns the pass that a message belongs to, and makes it if this is its first message here. NotFound if
  // the context is not live.
  absl::StatusOr<std::shared_ptr<Pass>> find(const proto::Pass& header, absl::Time deadline) const;
  // Same as find(), but makes the context live if it is new: worker `from` names the pass in a call before
  // any message of the pass arrives.
  absl::StatusOr<std::shared_ptr<Pass>> join(const proto::Pass& header, uint64_t from,
                                             absl::Time deadline) const;
  std::vector<std::shared_ptr<Pass>> all() const;
  // Aborts the passes of a released context and drops its send nodes.
  static void release(ContextState& context);
  // Aborts and forgets all passes, and drops the send nodes. The error of a pass of which this worker is the
  // root is `reason`; that of the others says that this worker is lost. Messages that arrive later cannot
  // begin a pass: it is aborted too.
  void shutdown(const absl::Status& reason);

 private:
  std::shared_ptr<Pass> pass_of(const std::shared_ptr<ContextState>& context, const proto::Pass& header,
                                absl::Time deadline) const;
  // Makes room for one more pass. Moves a forgotten pass into `forgotten`, which must be destroyed without
  // the lock. Returns false if no pass has ended.
  static bool make_room(ContextState& context, std::shared_ptr<Pass>& forgotten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(context.mutex);

  // The parts of a context that hold it. They are destroyed without a lock.
  struct Held {
    HashMap<rpc::Id, std::shared_ptr<Pass>> passes;
    HashMap<uint64_t, std::shared_ptr<SendNode>> nodes;
  };
  static Held take(ContextState& context);

  // OK until shutdown(); then the error that ends the pass.
  absl::Status stopped(const rpc::Id& pass) const;

  rpc::AgentServices& agent_;
  Contexts& contexts_;
  const std::weak_ptr<StepBarrierDriver> barrier_;

  mutable Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
