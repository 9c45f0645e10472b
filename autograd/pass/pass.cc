#include "gradwire/autograd/pass/pass.h"

#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/active_context.h"
#include "gradwire/autograd/context/graph_boundary.h"
#include "gradwire/autograd/context/position.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/torch_tensors.h"

namespace gradwire::autograd {
namespace {

// A recorded pass makes nodes of its own, which stand where it was called.
std::shared_ptr<const ActiveContext> active_in(const ContextState& context, const proto::Pass& header) {
  std::optional<Timeline::Path> path = read_position(header.position());
  if (header.position().empty() || !path) return context.active;
  return context.active->serving(*std::move(path));
}

}  // namespace

Pass::Pass(PassCalls::Options calls, std::shared_ptr<ContextState> context, PassPart::Ended ended)
    : context_(std::move(context)),
      part_(std::make_shared<PassPart>(std::move(calls), *context_, std::move(ended))),
      active_(active_in(*context_, header())),
      wave_(*part_, *context_),
      known_(*part_, *context_),
      gradients_(context_, header()) {}

absl::Status Pass::add_inputs(const std::vector<at::Tensor>& inputs) {
  absl::Status status = absl::AbortedError("the backward pass has ended");
  part_->update([&](PassPart::Locked& locked) {
    if (!locked.state.ended()) status = locked.graph->add_inputs(inputs);
  });
  return status;
}

void Pass::start(torch::autograd::edge_list roots) {
  LocalExecutor::Reach reach;
  std::optional<Plan> plan;
  std::vector<Wave::Message> messages;
  bool ended = false;
  part_->update([&](PassPart::Locked& locked) {
    ended = locked.state.ended();
    if (ended) return;
    absl::StatusOr<LocalExecutor::Reach> walked = locked.graph->mark_roots(std::move(roots));
    ended = !walked.ok();
    if (ended) return locked.fail(walked.status());
    reach = *std::move(walked);
    locked.count();
    // With inputs the count stays 0 until run_roots(), which must not be taken for the end.
    if (header().inputs_only()) locked.state.counted(1);
    if (header().fast()) return;
    if (!header().inputs_only()) plan = KnownMarks::plan_of(reach, id().origin);
    if (plan) return;
    locked.state.begin_root();
    messages = Wave::end_walk(reach, locked);
  });
  if (ended) return;
  if (header().fast() || plan) known_.start(std::move(plan), reach);
  wave_.send(std::move(messages));
}

absl::Status Pass::wait_for_wave(absl::Time deadline) {
  const Future<void> over = part_->root().wave_over();
  if (!over.wait_for(deadline - Clock::system().now())) abort_late();
  return over.result();
}

void Pass::run_roots(torch::autograd::variable_list gradients) {
  part_->root().attend();
  deliver_and_run(id().origin, [&](PassPart::Locked& locked) {
    if (locked.state.ended()) return;
    locked.begin_run();
    const absl::Status delivered = locked.graph->deliver_roots(std::move(gradients));
    if (!delivered.ok()) return locked.fail(delivered);
    locked.state.ran(header().inputs_only() ? 2 : 1, locked.actions);
  });
}

absl::Status Pass::wait_for_end(absl::Time deadline) {
  while (true) {
    RootWait::News news = part_->root().take();
    for (ArrivedRun& each : news.arrived) run(std::move(each));
    if (news.ended) return part_->root().completion().result();
    const absl::Duration left = deadline - Clock::system().now();
    if (news.arrived.empty() ? news.more.wait_for(left) : left > absl::ZeroDuration()) continue;
    abort_late();
    deadline = absl::InfiniteFuture();
  }
}

void Pass::abort_late() {
  part_->abort(absl::DeadlineExceededError(absl::StrCat(
      "the backward pass of the autograd context ", rpc::to_string(context_->id),
      " did not end in time: in the fast mode a tensor that was sent and not used in the loss keeps it "
      "waiting; otherwise a worker is slow")));
}

void Pass::finish(const PassReply& reply) {
  known_.begin();
  part_->update([&](PassPart::Locked& locked) {
    if (!locked.state.ended()) locked.begin_run();
    locked.state.finish_asked(locked.owe(reply), locked.actions);
  });
  part_->notice_loss(id().origin);
}

void Pass::run(ArrivedRun arrived) {
  const uint64_t from = arrived.from.incarnation;
  known_.begin();
  absl::Status status;
  const bool finishes = part_->calls().run_is_finish(from, part_->calls().self().incarnation);
  deliver_and_run(from, [&](PassPart::Locked& locked) {
    status = locked.state.status();
    if (status.ok()) locked.begin_run();
    if (status.ok() && locked.state.run_arrived(from, arrived.run.message())) {
      if (absl::Status delivered = deliver(arrived, *locked.graph); delivered.ok()) {
        locked.state.ran(1, locked.actions);
      } else {
        locked.fail(std::move(delivered));
      }
    }
    if (finishes) locked.state.finish_asked(locked.owe(arrived.reply), locked.actions);
  });
  // Last, when this thread is about to look for what comes of it.
  if (!finishes) arrived.reply(status.ok() ? rpc::ServiceReply() : PassCalls::failure(status));
}

void Pass::deliver_and_run(uint64_t from, PassPart::Event event) {
  at::AutoGradMode mode(header().create_graph());
  {
    // The sums of a pass that is recorded have nodes.
    std::optional<ActiveContextSlot::Scope> scope;
    if (header().create_graph()) scope.emplace(active_);
    part_->update(event);
    part_->notice_losses(from);
  }
  // Calls that nodes make belong to the context too.
  ActiveContextSlot::Scope scope(active_);
  part_->run_nodes([this](LocalExecutor::Task& task) { return gradients_.keep(task.kept); },
                   [this](const RecvNode& node, torch::autograd::variable_list gradients) {
                     ship(node, std::move(gradients));
                   });
}

absl::Status Pass::deliver(ArrivedRun& arrived, LocalExecutor& graph) const {
  const std::string& set = arrived.run.defined();
  std::vector<at::Tensor>& defined = arrived.defined;
  if (header().create_graph()) {
    GRADWIRE_RETURN_IF_ERROR(plant_recv(context_->id, part_->calls().self().incarnation, arrived.from,
                                        defined, arrived.run.graph()));
  }
  torch::autograd::variable_list gradients;
  std::size_t next = 0;
  for (std::size_t i = 0; i < 8 * set.size(); ++i) {
    const bool is_defined = (static_cast<uint8_t>(set[i / 8]) >> (i % 8) & 1) != 0;
    gradients.push_back(is_defined && next < defined.size() ? std::move(defined[next++]) : at::Tensor());
  }
  if (next != defined.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker \"", arrived.from.name, "\" shipped more gradients than it says"));
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
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    defined[i / 8] = static_cast<char>(static_cast<uint8_t>(defined[i / 8]) | 1u << (i % 8));
    tensors->add(std::move(gradients[i]), /*give_away=*/true);
  }
  run.set_defined(std::move(defined));
  if (header().create_graph()) plant_send(*context_, self, to, tensors->tensors, *run.mutable_graph());
  const absl::Status sent =
      calls.send(node.sender(), kRunService, run, std::move(tensors), "shipping gradients to",
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
