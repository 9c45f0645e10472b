#include "gradwire/autograd/pass/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/torch_tensors.h"
#include "gradwire/proto/autograd.pb.h"

namespace gradwire::autograd {
namespace {

[[maybe_unused]] const bool registered = [] {
  rpc::register_extension([](rpc::Agent& agent) -> std::unique_ptr<rpc::AgentExtension> {
    return std::make_unique<Engine>(agent);
  });
  return true;
}();

absl::Status released_status(const rpc::Id& context) {
  return absl::AbortedError(absl::StrCat("the autograd context ", rpc::to_string(context), " was released"));
}

}  // namespace

Engine::Engine(rpc::Agent& agent)
    : agent_(agent),
      gate_(std::make_shared<Gate>([&agent]() -> TimerQueue& { return agent.timers(); })),
      contexts_(agent, [this](const std::shared_ptr<ContextState>& context) { released(context); }),
      hook_(agent, contexts_, *gate_) {}

Engine::~Engine() = default;

absl::StatusOr<Engine*> Engine::of(const rpc::Agent& agent) {
  if (Engine* engine = agent.extension<Engine>()) return engine;
  return absl::FailedPreconditionError(
      absl::StrCat("the agent \"", agent.self().name, "\" started before //autograd was loaded"));
}

std::shared_ptr<Pass> Engine::pass_of(const std::shared_ptr<ContextState>& context, const proto::Pass& header,
                                      absl::Time deadline) {
  std::shared_ptr<Pass> pass, forgotten;
  absl::Status refused;
  {
    MutexLock lock(context->mutex);
    auto found = context->passes.find(rpc::from_proto(header.pass()));
    if (found != context->passes.end()) return found->second;
    pass = std::make_shared<Pass>(
        agent_.weak_from_this(), agent_.self(), context, header, deadline,
        [gate = std::weak_ptr<Gate>(gate_), id = context->id](const absl::Status& status) {
          // After an error the forward may still get its backward.
          std::shared_ptr<Gate> alive = gate.lock();
          if (status.ok() && alive != nullptr) alive->backward_ended(id);
        });
    if (context->released) {
      refused = released_status(context->id);
    } else if (!make_room(*context, forgotten)) {
      refused = absl::ResourceExhaustedError(absl::StrCat(
          "beginning a backward pass in the autograd context ", rpc::to_string(context->id), " failed: got ",
          context->passes.size(), " passes that have not ended, expected fewer than ",
          ContextState::kMaxPasses, "; wait for some to end"));
    } else {
      context->passes.emplace(pass->id(), pass);
      context->pass_order.push_back(pass->id());
      return pass;
    }
  }
  pass->abort(refused);
  return pass;
}

bool Engine::make_room(ContextState& context, std::shared_ptr<Pass>& forgotten) {
  if (context.passes.size() < ContextState::kMaxPasses) return true;
  for (auto oldest = context.pass_order.begin(); oldest != context.pass_order.end(); ++oldest) {
    auto pass = context.passes.find(*oldest);
    if (!pass->second->ended()) continue;
    forgotten = std::move(pass->second);
    context.passes.erase(pass);
    context.pass_order.erase(oldest);
    return true;
  }
  return false;
}

std::shared_ptr<Pass> Engine::begin_pass(const std::shared_ptr<ContextState>& context, proto::Pass header,
                                         absl::Time deadline) {
  rpc::to_proto(context->id, *header.mutable_context());
  rpc::to_proto(agent_.next_id(), *header.mutable_pass());
  return pass_of(context, header, deadline);
}

absl::StatusOr<std::shared_ptr<Pass>> Engine::find_pass(const proto::Pass& header, absl::Time deadline) {
  auto context = contexts_.find(rpc::from_proto(header.context()));
  if (!context.ok()) {
    contexts_.note_late();
    return context.status();
  }
  return pass_of(*context, header, deadline);
}

absl::StatusOr<std::shared_ptr<Pass>> Engine::join_pass(const proto::Pass& header, uint64_t from,
                                                        absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(auto context, contexts_.enter(rpc::from_proto(header.context()), from));
  return pass_of(context, header, deadline);
}

void Engine::watch(const std::weak_ptr<Watcher>& watcher) {
  MutexLock lock(mutex_);
  std::erase_if(watchers_, [](const auto& each) { return each.expired(); });
  watchers_.push_back(watcher);
}

std::shared_ptr<void> Engine::shared(const std::string& name,
                                     const std::function<std::shared_ptr<void>()>& make) {
  if (name.empty()) return make();
  {
    MutexLock lock(mutex_);
    if (auto found = shared_[name].lock()) return found;
  }
  std::shared_ptr<void> made = make();
  MutexLock lock(mutex_);
  std::weak_ptr<void>& slot = shared_[name];
  if (auto first = slot.lock()) return first;  // Somebody was faster.
  slot = made;
  return made;
}

std::vector<std::shared_ptr<Engine::Watcher>> Engine::watchers() {
  std::vector<std::shared_ptr<Watcher>> alive;
  MutexLock lock(mutex_);
  for (const auto& each : watchers_) {
    if (auto watcher = each.lock()) alive.push_back(std::move(watcher));
  }
  return alive;
}

std::vector<std::shared_ptr<Pass>> Engine::passes() const {
  std::vector<std::shared_ptr<Pass>> passes;
  for (const auto& context : contexts_.all()) {
    MutexLock lock(context->mutex);
    for (const auto& [id, pass] : context->passes) passes.push_back(pass);
  }
  return passes;
}

void Engine::released(const std::shared_ptr<ContextState>& context) {
  absl::flat_hash_map<rpc::Id, std::shared_ptr<Pass>> passes;
  absl::flat_hash_map<uint64_t, std::shared_ptr<SendNode>> nodes;
  {
    MutexLock lock(context->mutex);
    // The passes hold the context, the context must not hold them for ever.
    context->released = true;
    passes.swap(context->passes);
    context->pass_order.clear();
    nodes.swap(context->send_nodes);
  }
  const absl::Status reason = released_status(context->id);
  for (const auto& [id, pass] : passes) pass->abort(reason);
  gate_->released(context->id);
  for (const auto& watcher : watchers()) watcher->context_released(context->id);
}

void Engine::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  for (const auto& pass : passes()) pass->worker_lost(worker, reason);
  contexts_.worker_lost(worker);
  for (const auto& watcher : watchers()) watcher->worker_lost(worker, reason);
}

bool Engine::idle() const { return contexts_.cleanups_under_way() == 0; }

void Engine::shutdown(const absl::Status& reason) {
  // To others it is a worker that was lost.
  const absl::Status lost = with_worker(
      absl::UnavailableError(absl::StrCat("worker \"", agent_.self().name,
                                          "\" shut down during a backward pass: ", reason.message())),
      agent_.self().name);
  for (const auto& pass : passes())
    pass->abort(pass->id().origin == agent_.self().incarnation ? reason : lost);
  gate_->shutdown(reason);
  for (const auto& watcher : watchers()) watcher->shutdown(reason);
}

bool Engine::serves(uint32_t service) const { return service >= kMarkService && service <= kNeededService; }

// Gradients for a pass whose root waits go to the thread that waits: no other need wake for them.
bool Engine::serves_on_arrival(uint32_t service) const { return service == kRunService; }

void Engine::serve(rpc::ServiceCall call) {
  switch (call.service) {
    case kMarkService:
      return serve_mark(call);
    case kNeededService:
      return serve_needed(call);
    case kRunService:
      return serve_run(call);
    case kFinishService:
      return serve_finish(call);
    case kAbortService:
      return serve_abort(call);
    case kCleanupService:
      return serve_cleanup(call);
    case kAdmittedService:
      return serve_admitted(call);
    default:
      call.reply(absl::InvalidArgumentError(absl::StrCat("autograd has no service ", call.service)));
  }
}

template <class M>
bool Engine::parse(const rpc::ServiceCall& call, M& message) const {
  if (message.ParseFromString(call.body)) return true;
  call.reply(absl::InvalidArgumentError(
      absl::StrCat("worker \"", call.from.name, "\" sent a ", message.GetTypeName(), " that is none")));
  return false;
}

void Engine::serve_mark(const rpc::ServiceCall& call) {
  proto::Mark mark;
  if (!parse(call, mark)) return;
  auto pass = find_pass(mark.pass(), call.deadline);
  if (!pass.ok()) return call.reply(pass.status());
  (*pass)->mark(call.from, mark, call.reply);
}

void Engine::serve_needed(const rpc::ServiceCall& call) {
  proto::Needed needed;
  if (!parse(call, needed)) return;
  auto pass = find_pass(needed.pass(), call.deadline);
  if (!pass.ok()) return call.reply(pass.status());
  (*pass)->need(call.from, needed, call.reply);
}

void Engine::serve_run(const rpc::ServiceCall& call) {
  Pass::Run arrived{.from = call.from, .run = {}, .defined = {}, .reply = call.reply};
  if (!parse(call, arrived.run)) return;
  auto pass = find_pass(arrived.run.pass(), call.deadline);
  if (!pass.ok()) return call.reply(pass.status());
  if (call.tensors != nullptr)
    arrived.defined = std::move(static_cast<rpc::TorchTensors&>(*call.tensors).tensors);
  if ((*pass)->hand_over(arrived)) return;
  // Dropped when the agent is gone, and answered by that.
  agent_.executor()->post_clean(
      [agent = agent_.weak_from_this(), pass = *std::move(pass), arrived = std::move(arrived)]() mutable {
        rpc::AgentGuard guard(agent.lock());
        pass->run(std::move(arrived));
      },
      &run_cost_);
}

void Engine::serve_finish(const rpc::ServiceCall& call) {
  proto::Finish finish;
  if (!parse(call, finish)) return;
  auto pass = find_pass(finish.pass(), call.deadline);
  if (!pass.ok()) return call.reply(pass.status());
  (*pass)->finish(call.reply);
}

void Engine::serve_abort(const rpc::ServiceCall& call) {
  proto::Abort abort;
  if (!parse(call, abort)) return;
  // Of a released context nothing is left to abort.
  if (auto pass = find_pass(abort.pass(), call.deadline); pass.ok()) {
    absl::Status reason = rpc::status_from_proto(abort.reason());
    (*pass)->abort_asked(reason.ok() ? absl::AbortedError("the pass was aborted") : reason);
  }
  call.reply(rpc::ServiceReply());
}

void Engine::serve_cleanup(const rpc::ServiceCall& call) {
  proto::Cleanup cleanup;
  if (!parse(call, cleanup)) return;
  absl::Status ended =
      contexts_.cleanup(rpc::from_proto(cleanup.context()), cleanup.low(), call.from.incarnation);
  if (!ended.ok()) return call.reply(std::move(ended));
  call.reply(rpc::ServiceReply{.body = {}, .tensors = nullptr, .late = true});
}

void Engine::serve_admitted(const rpc::ServiceCall& call) {
  proto::Admitted admitted;
  if (!parse(call, admitted)) return;
  if (auto context = contexts_.find(rpc::from_proto(admitted.context())); context.ok()) {
    hook_.admitted(*context, call.from.incarnation);
  }
  call.reply(rpc::ServiceReply());
}

}  // namespace gradwire::autograd
