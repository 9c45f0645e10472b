#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/step_barrier_driver.h"
#include "gradwire/autograd/pass/pass.h"

namespace gradwire::autograd {

// The passes that one agent has a part in. Each stands in its context. Thread-safe.
class PassTable {
 public:
  // `agent` and `contexts` outlive it.
  PassTable(rpc::AgentServices& agent, Contexts& contexts, const std::shared_ptr<StepBarrierDriver>& barrier)
      : agent_(agent), contexts_(contexts), barrier_(barrier) {}

  // A pass of which this worker is the root.
  std::shared_ptr<Pass> begin(const std::shared_ptr<ContextState>& context, proto::Pass header,
                              absl::Time deadline) const;
  // The pass that a message belongs to; made if the message is its first.
  absl::StatusOr<std::shared_ptr<Pass>> find(const proto::Pass& header, absl::Time deadline) const;
  // The same for another worker's pass, which worker `from` reports before any of its messages has come.
  absl::StatusOr<std::shared_ptr<Pass>> join(const proto::Pass& header, uint64_t from,
                                             absl::Time deadline) const;
  std::vector<std::shared_ptr<Pass>> all() const;
  // The context is out of reach: its passes end, and what it holds of the graph goes.
  static void release(ContextState& context);

 private:
  std::shared_ptr<Pass> pass_of(const std::shared_ptr<ContextState>& context, const proto::Pass& header,
                                absl::Time deadline) const;
  // Makes room for one more pass; `forgotten` is to be destroyed outside the lock. False when no pass can be
  // forgotten.
  static bool make_room(ContextState& context, std::shared_ptr<Pass>& forgotten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(context.mutex);

  rpc::AgentServices& agent_;
  Contexts& contexts_;
  const std::weak_ptr<StepBarrierDriver> barrier_;
};

}  // namespace gradwire::autograd
