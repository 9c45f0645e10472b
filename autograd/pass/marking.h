#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/autograd/context/graph_boundary.h"
#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/autograd/pass/pass_part.h"
#include "gradwire/autograd/pass/plan.h"

// How each worker of a pass gets to know which gradients will arrive.
namespace gradwire::autograd {

// The wave of a pass (proto/autograd.proto): the walks over this worker's graph that a MARK or a NEEDED
// starts, and the messages that these call for. Thread-safe. `part` and `context` outlive it.
class Wave {
 public:
  Wave(PassPart& part, ContextState& context) : part_(part), context_(context) {}

  void mark(const rpc::Worker& from, const proto::Mark& mark, const PassReply& reply);
  void need(const rpc::Worker& from, const proto::Needed& needed, const PassReply& reply);

  // At most one MARK and one NEEDED for each worker.
  struct Message {
    uint64_t to = 0;
    bool needed = false;
    SentTensorsField tensors;
    // 0: the pass has ended, and it is not sent.
    uint64_t number = 0;
  };
  // The messages that a walk calls for. The walk began last and is over.
  static std::vector<Message> end_walk(const LocalExecutor::Reach& reach, PassPart::Locked& locked);
  void send(std::vector<Message> messages);

 private:
  // The common part of MARK and NEEDED. Calls `walk` with the lock.
  void serve(const rpc::Worker& from, uint64_t number, const PassReply& reply,
             absl::FunctionRef<absl::StatusOr<LocalExecutor::Reach>(LocalExecutor&)> walk);

  PassPart& part_;
  ContextState& context_;
};

// Marks without a MARK what this worker's part of a pass needs: in the fast mode all tensors that it has
// sent, in a planned pass those of the plan. Thread-safe. `part` and `context` outlive it.
class KnownMarks {
 public:
  KnownMarks(PassPart& part, ContextState& context) : part_(part), context_(context) {}

  // The plan that a wave would find. Requires that all senders that the roots reach have said where the
  // gradients go on to; else nothing.
  static std::optional<Plan> plan_of(const LocalExecutor::Reach& reach, uint64_t root);

  // At the root: a pass without a wave. `plan`: nothing in the fast mode.
  void start(std::optional<Plan> plan, const LocalExecutor::Reach& reach);
  // To be called before a RUN or a FINISH is served. Marks once.
  void begin();

 private:
  void begin_fast();
  // Whether a planned message of this worker's own leads on to what it received.
  bool begin_planned();
  absl::Status mark_planned(const absl::StatusOr<SendNodes>& nodes, PassPart::Locked& locked) const;

  PassPart& part_;
  ContextState& context_;
  // Set with the lock of `part_`.
  std::atomic<bool> begun_{false};
};

}  // namespace gradwire::autograd
