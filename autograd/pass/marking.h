#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/autograd/context/graph_boundary.h"
#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/autograd/pass/pass_part.h"
#include "gradwire/autograd/pass/plan.h"

// Marking: each worker of a pass learns which gradients will arrive.
namespace gradwire::autograd {

// This worker's part of the wave of a pass (proto/autograd.proto): a MARK or a NEEDED starts a walk over the
// worker's graph, and the walk causes further messages. Thread-safe. `part` and `context` must outlive this
// object.
class MarkingWalk {
 public:
  MarkingWalk(PassPart& part, ContextState& context) : part_(part), context_(context) {}

  void mark(const rpc::Worker& from, const proto::Mark& mark, const PassReply& reply);
  void need(const rpc::Worker& from, const proto::Needed& needed, const PassReply& reply);

  // A MARK or a NEEDED that a walk causes. A walk sends at most one of each to a worker.
  struct Message {
    uint64_t to = 0;
    // Whether it is a NEEDED.
    bool needed = false;
    SentTensorsField tensors;
    // The number of the message; 0 if the pass has ended and the message is not sent.
    uint64_t number = 0;
  };
  // Ends the walk that was begun last, and returns the messages that it causes.
  static std::vector<Message> end_walk(const LocalExecutor::Reach& reach, PassPart::Locked& locked);
  void send(std::vector<Message> messages);

 private:
  // The common part of mark() and need(). Calls `walk` with the lock held.
  void serve(const rpc::Worker& from, uint64_t number, const PassReply& reply,
             absl::FunctionRef<absl::StatusOr<LocalExecutor::Reach>(LocalExecutor&)> walk);

  PassPart& part_;
  ContextState& context_;
};

// Marks the tensors of this worker's part of a pass without a wave: in the fast mode all tensors that the
// worker has sent, in a planned pass those of the plan. Thread-safe. `part` and `context` must outlive this
// object.
class DirectMarking {
 public:
  DirectMarking(PassPart& part, ContextState& context) : part_(part), context_(context) {}

  // Returns the plan of a pass: the tensors that a wave would find. Returns nullopt if one of the senders
  // that the roots reach has not sent the routes of its gradients, or if the plan is too large.
  static std::optional<Plan> plan_of(const LocalExecutor::Reach& reach, uint64_t root);

  // At the root: starts a pass without a wave. `plan` is nullopt in the fast mode.
  void start(std::optional<Plan> plan, const LocalExecutor::Reach& reach);
  // Marks the tensors, once. Must be called before a RUN or a FINISH is served.
  void begin();

 private:
  void begin_fast();
  // Returns whether this call did the marking and the gradient of a planned message of this worker may
  // continue to tensors that it received.
  bool begin_planned();
  absl::Status mark_planned(const absl::StatusOr<SendNodes>& nodes, PassPart::Locked& locked) const;

  PassPart& part_;
  ContextState& context_;
  // Changed only with the lock of `part_` held.
  std::atomic<bool> begun_{false};
};

}  // namespace gradwire::autograd
