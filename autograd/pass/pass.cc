// One backward pass on one worker. At the root the thread of backward() calls start(), wait_for_wave(),
// run_roots() and wait_for_end(), in this order. On the other workers messages arrive, in any order: MARK
// and NEEDED (MarkingWalk), RUN (run()), FINISH (finish()) and ABORT. The state of the protocol is in
// PassPart; Pass translates between its events, the graph, and the messages.

#include "gradwire/autograd/pass/pass.h"

#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/graph_boundary.h"
#include "gradwire/autograd/context/position.h"
#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/autograd/context/unjoined.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"

namespace gradwire::autograd {

void KeptGradients::keep_apart(const std::vector<at::Tensor>& tensors) {
  MutexLock lock(context_->mutex);
  for (const at::Tensor& tensor : tensors) apart_[tensor];
}

Gradients KeptGradients::take_apart() {
  MutexLock lock(context_->mutex);
  return std::exchange(apart_, {}).hand_out();
}

absl::Status KeptGradients::keep(std::vector<std::pair<at::Tensor, at::Tensor>>& gradients) {
  if (gradients.empty()) return absl::OkStatus();
  // All tensors are checked before the first gradient is added, so a refused pass leaves nothing behind
  // here.
  for (const auto& [tensor, gradient] : gradients) GRADWIRE_RETURN_IF_ERROR(check_joined(tensor));
  try {
    MutexLock lock(context_->mutex);
    for (auto& [tensor, gradient] : gradients) {
      accumulate(apart_.contains(tensor) ? apart_ : context_->gradients, tensor, std::move(gradient));
    }
  } catch (...) {
    return caught("adding up the gradients of a leaf");
  }
  gradients.clear();
  return absl::OkStatus();
}

// Logs a warning for the first such gradient of the worker only; later ones are counted. A gradient that the
// caller has requested for this very tensor (apart) is correct.
absl::Status KeptGradients::check_joined(const at::Tensor& tensor) {
  // With inputs only requested gradients are kept.
  if (header_.inputs_only()) return absl::OkStatus();
  const std::string* sender = unjoined_sender(tensor);
  if (sender == nullptr || is_apart(tensor)) return absl::OkStatus();
  const bool first = context_->unjoined_gradients->fetch_add(1, std::memory_order_relaxed) == 0;
  if (!first && !header_.require_joined()) return absl::OkStatus();
  const std::string what = absl::StrCat("backward in the autograd context ", rpc::to_string(context_->id),
                                        ": got a gradient for a tensor of shape ", c10::str(tensor.sizes()),
                                        " that worker \"", *sender,
                                        "\" sent outside every context, expected a result of a call in this "
                                        "context; the gradient stays on this worker: open the Context before "
                                        "the call that returned the tensor, or use tensor.detach() if the "
                                        "gradient is wanted here");
  if (header_.require_joined()) return absl::FailedPreconditionError(what);
  log(LogLevel::kWarning, what,
      " (reported once for each agent; BackwardOptions::require_joined makes this an error)");
  return absl::OkStatus();
}

bool KeptGradients::is_apart(const at::Tensor& tensor) {
  MutexLock lock(context_->mutex);
  return apart_.contains(tensor);
}

namespace {

// Returns the context in which the pass runs. A recorded pass (create_graph) makes nodes, which belong to the
// position at which backward() was called.
std::shared_ptr<const ActiveContext> active_in(const ContextState& context, const proto::Pass& header) {
  std::optional<Timeline::Path> path = read_position(header.position());
  if (header.position().empty() || !path) return context.active;
  return context.active->serving(*std::move(path));
}

// Adding gradients uses their devices, of which one may be lost or out of memory.
absl::Status delivered_by(absl::FunctionRef<absl::Status()> deliver) {
  try {
    return deliver();
  } catch (...) {
    return caught("adding up gradients");
  }
}

}  // namespace

Pass::Pass(PassCalls::Options calls, std::shared_ptr<ContextState> context, PassPart::Ended ended)
    : context_(std::move(context)),
      part_(std::make_shared<PassPart>(std::move(calls), *context_, std::move(ended))),
      active_(active_in(*context_, header())),
      wave_(*part_, *context_),
      direct_(*part_, *context_),
      gradients_(context_, header()) {}

absl::Status Pass::add_inputs(const std::vector<at::Tensor>& inputs) {
  absl::Status status = absl::AbortedError("the backward pass has ended");
  part_->update([&](PassPart::Locked& locked) {
    if (!locked.state.ended()) status = locked.graph->add_inputs(inputs);
  });
  return status;
}

// 1. Walk this worker's graph from the roots.
// 2. Fast mode: assume the marks. If the routes of all reached tensors are known, use the plan. In both
//    cases the run begins at once.
// 3. Otherwise begin the wave: send a MARK to each worker that the walk reached. The run begins when all are
//    answered.
void Pass::start(torch::autograd::edge_list roots) {
  LocalExecutor::Reach reach;
  std::optional<Plan> plan;
  std::vector<MarkingWalk::Message> messages;
  bool ended = false;
  part_->update([&](PassPart::Locked& locked) {
    ended = locked.state.ended();
    if (ended) return;
    absl::StatusOr<LocalExecutor::Reach> walked = locked.graph->mark_roots(std::move(roots));
    ended = !walked.ok();
    if (ended) return locked.fail(walked.status());
    reach = *std::move(walked);
    locked.count();
    // With inputs nothing is counted until run_roots(). The additional 1 keeps the pass from ending before
    // that.
    if (header().inputs_only()) locked.state.counted(1);
    if (header().fast()) return;
    if (!header().inputs_only()) plan = DirectMarking::plan_of(reach, id().origin);
    if (plan) return;
    locked.state.begin_root();
    messages = MarkingWalk::end_walk(reach, locked);
  });
  if (ended) return;
  if (header().fast() || plan) direct_.start(std::move(plan), reach);
  wave_.send(std::move(messages));
}

absl::Status Pass::wait_for_wave(absl::Time deadline) {
  const Future<void> over = part_->root().wave_over();
  if (!over.wait_for(deadline - Clock::system().now())) abort_late();
  return over.result();
}

// attend() comes first: other workers may answer the first shipped gradients with a RUN while nodes run
// here, and this thread then serves that RUN in wait_for_end(). The roots are one counted event; with inputs
// there is also the additional one of start().
void Pass::run_roots(torch::autograd::variable_list gradients) {
  part_->root().attend();
  deliver_and_run(id().origin, [&](PassPart::Locked& locked) {
    if (locked.state.ended()) return;
    locked.begin_run();
    const absl::Status delivered =
        delivered_by([&] { return locked.graph->deliver_roots(std::move(gradients)); });
    if (!delivered.ok()) return locked.fail(delivered);
    locked.state.ran(header().inputs_only() ? 2 : 1, locked.actions);
  });
}

absl::Status Pass::wait_for_end(absl::Time deadline) {
  while (true) {
    RootWait::Batch batch = part_->root().take();
    for (ArrivedRun& each : batch.arrived) run(std::move(each));
    if (batch.ended) return part_->root().completion().result();
    const absl::Duration left = deadline - Clock::system().now();
    if (batch.arrived.empty() ? batch.more.wait_for(left) : left > absl::ZeroDuration()) continue;
    // The abort ends the pass on this worker at once, so the next round of the loop finds the end. RUNs that
    // were handed over before that still get their answers.
    abort_late();
    deadline = absl::InfiniteFuture();
  }
}

void Pass::abort_late() {
  part_->abort(absl::DeadlineExceededError(absl::StrCat(
      "the backward pass of the autograd context ", rpc::to_string(context_->id),
      " timed out: with BackwardMode::kFast a tensor that was sent and is not used in the loss keeps it "
      "waiting (use kSmart); with kSmart a worker is slow or blocked")));
}

// The reply is owed until this part has ended. If the root was lost before, the agent does not report that
// again, so notice_loss() checks for it.
void Pass::finish(const PassReply& reply) {
  direct_.begin();
  part_->update([&](PassPart::Locked& locked) {
    if (!locked.state.ended()) locked.begin_run();
    locked.state.finish_asked(locked.owe(reply), locked.actions);
  });
  part_->notice_loss(id().origin);
}

// 1. Mark the known tensors, if this is the first message of the pass.
// 2. Deliver the gradients, unless this RUN was repeated: then they have arrived before, and only the answer
//    was lost.
// 3. Run the nodes that are ready.
// 4. Answer. A RUN that is a FINISH too is answered when this part ends, so its reply is stored instead.
void Pass::run(ArrivedRun arrived) {
  const uint64_t from = arrived.from.incarnation;
  direct_.begin();
  // The gradients are delivered on streams that wait for them, and not on those of this thread.
  std::unique_ptr<rpc::StreamScope> streams;
  absl::Status status;
  if (arrived.fence != nullptr) {
    streams = rpc::tensor_backend()->enter_pool_streams();
    if (absl::Status ready = arrived.fence->wait(); !ready.ok()) {
      part_->abort(with_worker(std::move(ready), part_->calls().self().name));
    }
  }
  const bool finishes = part_->calls().run_is_finish(from, part_->calls().self().incarnation);
  deliver_and_run(from, [&](PassPart::Locked& locked) {
    status = locked.state.status();
    if (status.ok()) locked.begin_run();
    if (status.ok() && locked.state.run_arrived(from, arrived.run.message())) {
      absl::Status delivered = delivered_by([&] { return deliver(arrived, *locked.graph); });
      if (delivered.ok()) {
        locked.state.ran(1, locked.actions);
      } else {
        locked.fail(std::move(delivered));
      }
    }
    if (finishes) locked.state.finish_asked(locked.owe(arrived.reply), locked.actions);
  });
  // The reply is sent last, just before this thread takes the next message.
  if (!finishes) arrived.reply(status.ok() ? rpc::ServiceReply() : PassCalls::failure(status));
}

void Pass::deliver_and_run(uint64_t from, PassPart::Event event) {
  at::AutoGradMode mode(header().create_graph());
  {
    // In a recorded pass the additions of gradients make nodes, which must belong to the context.
    std::optional<ActiveContextSlot::Scope> scope;
    if (header().create_graph()) scope.emplace(active_);
    part_->update(event);
    part_->notice_losses(from);
  }
  // Calls that nodes make must belong to the context too.
  ActiveContextSlot::Scope scope(active_);
  part_->run_nodes([this](LocalExecutor::Task& task) { return gradients_.keep(task.kept); },
                   [this](const RecvNode& node, torch::autograd::variable_list gradients) {
                     ship(node, std::move(gradients));
                   });
}

// The bit mask and the tensors come from a peer and may not fit. A bit without a tensor gives an undefined
// gradient; a tensor without a bit is an error. deliver_message() checks the rest.
absl::Status Pass::deliver(ArrivedRun& arrived, LocalExecutor& graph) const {
  const std::string& set = arrived.run.defined();
  std::vector<at::Tensor>& defined = arrived.defined;
  if (header().create_graph()) {
    GRADWIRE_RETURN_IF_ERROR(plant_recv(context_->id, part_->calls().self().incarnation, arrived.from,
                                        defined, arrived.sender_devices, arrived.run.graph()));
  }
  torch::autograd::variable_list gradients;
  std::size_t next = 0;
  for (std::size_t i = 0; i < 8 * set.size(); ++i) {
    const bool is_defined = (static_cast<uint8_t>(set[i / 8]) >> (i % 8) & 1) != 0;
    gradients.push_back(is_defined && next < defined.size() ? std::move(defined[next++]) : at::Tensor());
  }
  if (next != defined.size()) {
    return absl::InvalidArgumentError(absl::StrCat("malformed RUN from worker \"", arrived.from.name,
                                                   "\": got ", defined.size(),
                                                   " gradients, but its bit mask names ", next));
  }
  return graph.deliver_message(arrived.run.message(), std::move(gradients));
}

void Pass::ship(const RecvNode& node, torch::autograd::variable_list gradients) {
  const PassCalls& calls = part_->calls();
  const uint64_t self = calls.self().incarnation;
  const uint64_t to = node.sender().incarnation;
  proto::Run run;
  run.set_message(node.message());
  std::string defined((gradients.size() + 7) / 8, '\0');
  auto tensors = std::make_unique<rpc::TorchTensors>();
  std::vector<rpc::Device> destinations;
  bool on_device = false;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    destinations.push_back(node.sender_device(static_cast<uint32_t>(i)));
    on_device |= !gradients[i].is_cpu() || !destinations.back().is_cpu();
    defined[i / 8] = static_cast<char>(static_cast<uint8_t>(defined[i / 8]) | 1u << (i % 8));
    tensors->add(std::move(gradients[i]), /*give_away=*/true);
  }
  // Without devices on either side the tensors take the short way of those on the CPU.
  if (!on_device) destinations.clear();
  run.set_defined(std::move(defined));
  if (header().create_graph()) plant_send(*context_, self, to, tensors->tensors, *run.mutable_graph());
  // The answer keeps the part alive, but not the pass: a released context drops its passes. The state has
  // counted the shipment before (PassPart::run_nodes), so the part cannot end before the answer.
  const absl::Status sent = calls.send(
      node.sender(), kRunService, run, std::move(tensors), std::move(destinations), "shipping gradients to",
      [part = part_, to,
       finished = calls.run_is_finish(self, to)](const absl::StatusOr<proto::PassAnswer>& answer) {
        part->answered(answer, [&](PassPart::Locked& locked) {
          locked.state.shipping_answered(to, locked.actions);
          if (finished) locked.state.finish_answered(to, {}, locked.actions);
        });
      });
  if (!sent.ok()) part_->abort(sent);
}

}  // namespace gradwire::autograd
