#include "gradwire/autograd/pass/engine.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/inspect/limits.h"

namespace gradwire::autograd {

template <class M, class Use>
void MessageServer::with_message(const rpc::ServiceCall& call, Use use) {
  M message;
  if (message.ParseFromString(call.body)) return use(message);
  call.reply(absl::InvalidArgumentError(
      absl::StrCat("malformed ", message.GetTypeName(), " message from worker \"", call.from.name, "\"")));
}

template <class M, class Use>
void MessageServer::with_pass(const rpc::ServiceCall& call, Use use) const {
  with_message<M>(call, [&](M& message) {
    auto pass = passes_.find(message.pass(), call.deadline);
    if (!pass.ok()) return call.reply(pass.status());
    use(*pass, message);
  });
}

void MessageServer::serve(const rpc::ServiceCall& call) {
  using PassPtr = std::shared_ptr<Pass>;
  switch (call.service) {
    case kMarkService:
      return with_pass<proto::Mark>(call, [&](const PassPtr& pass, const proto::Mark& mark) {
        pass->wave().mark(call.from, mark, call.reply);
      });
    case kNeededService:
      return with_pass<proto::Needed>(call, [&](const PassPtr& pass, const proto::Needed& needed) {
        pass->wave().need(call.from, needed, call.reply);
      });
    case kRunService:
      return with_pass<proto::Run>(
          call, [&](const PassPtr& pass, proto::Run& message) { run(call, pass, std::move(message)); });
    case kFinishService:
      return with_pass<proto::Finish>(
          call, [&](const PassPtr& pass, const proto::Finish&) { pass->finish(call.reply); });
    case kAbortService:
      return with_message<proto::Abort>(call, [&](const proto::Abort& abort) {
        // An ABORT may overtake the other messages of its pass. find() then makes the pass, which is aborted
        // here, and the later messages are answered with the reason.
        // A released context has no passes left to abort.
        if (auto pass = passes_.find(abort.pass(), call.deadline); pass.ok()) {
          absl::Status reason = rpc::status_from_proto(abort.reason());
          if (reason.ok()) reason = absl::AbortedError("the pass was aborted");
          (*pass)->part().update(
              [&](PassPart::Locked& locked) { locked.state.abort_asked(reason, locked.actions); });
        }
        call.reply(rpc::ServiceReply());
      });
    case kCleanupService:
      return with_message<proto::Cleanup>(call, [&](const proto::Cleanup& cleanup) {
        absl::Status ended =
            contexts_.cleanup(rpc::from_proto(cleanup.context()), cleanup.low(), call.from.incarnation);
        if (!ended.ok()) return call.reply(std::move(ended));
        call.reply(rpc::ServiceReply{.body = {}, .tensors = nullptr, .deferrable = true});
      });
    case kAdmittedService:
      return with_message<proto::Admitted>(call, [&](const proto::Admitted& admitted) {
        if (auto context = contexts_.find(rpc::from_proto(admitted.context())); context.ok()) {
          planter_.admitted(*context, call.from.incarnation);
        }
        call.reply(rpc::ServiceReply());
      });
    default:
      call.reply(absl::InvalidArgumentError(absl::StrCat(
          "unknown autograd service ", call.service, " in a message from worker \"", call.from.name, "\"")));
  }
}

// A RUN runs user code, so it must not run on the thread that received it. If the thread of the root waits
// for gradients it serves the RUN itself, which saves waking another thread.
void MessageServer::run(const rpc::ServiceCall& call, const std::shared_ptr<Pass>& pass, proto::Run message) {
  ArrivedRun arrived{.from = call.from,
                     .run = std::move(message),
                     .defined = {},
                     .sender_devices = call.sender_devices,
                     .fence = call.fence,
                     .reply = call.reply};
  if (call.tensors != nullptr)
    arrived.defined = std::move(static_cast<rpc::TorchTensors&>(*call.tensors).tensors);
  if (pass->part().root().hand_over(arrived)) return;
  // If the agent shuts down, the task is dropped, and the shutdown answers the call.
  agent_.executor()->post_clean(
      [agent = agent_.weak_agent(), pass, arrived = std::move(arrived)]() mutable {
        rpc::AgentGuard guard(agent.lock());
        pass->run(std::move(arrived));
      },
      &run_cost_);
}

namespace {

using metrics::Metric;

[[maybe_unused]] const bool registered = [] {
  rpc::register_extension([](rpc::AgentServices& agent) -> std::unique_ptr<rpc::AgentExtension> {
    return std::make_unique<Engine>(agent);
  });
  return true;
}();

}  // namespace

Engine::Engine(rpc::AgentServices& agent)
    : agent_(agent),
      metrics_(agent.metrics()),
      barrier_(std::make_shared<StepBarrierDriver>([&agent]() -> TimerQueue& { return agent.timers(); })),
      contexts_(agent, [this](const std::shared_ptr<ContextState>& context) { released(context); }),
      planter_(agent, contexts_, *barrier_),
      passes_(agent, contexts_, barrier_),
      server_(agent, contexts_, passes_, planter_) {}

absl::StatusOr<Engine*> Engine::of(const rpc::Agent& agent) {
  if (Engine* engine = agent.services().extension<Engine>()) return engine;
  return absl::FailedPreconditionError(
      absl::StrCat("the agent \"", agent.get_worker_info().name, "\" started before //autograd was loaded"));
}

void Engine::collect(metrics::Samples& samples) const {
  uint64_t passes = 0;
  for (const auto& context : contexts_.all()) {
    MutexLock lock(context->mutex);
    passes += context->passes.size();
  }
  samples.add(Metric::kContexts, {}, contexts_.size());
  samples.add(Metric::kRememberedPasses, {}, passes);
  samples.add(Metric::kCleanupsUnderWay, {}, contexts_.cleanups_under_way());
  samples.add(Metric::kLateMessages, {}, contexts_.late_messages());
  samples.add(Metric::kUnjoinedGradients, {}, contexts_.unjoined_gradients());
  samples.add(Metric::kStepWaiters, {}, barrier_->waiting());
}

void Engine::pass_ended(const absl::Status& status, absl::Duration took) const {
  if (metrics_ == nullptr) return;
  // A pass is several messages, so the search for its metrics does not count.
  metrics_->counter(Metric::kPasses, {absl::StatusCodeToString(status.code())}).add();
  metrics_->histogram(Metric::kPassSeconds).record(took);
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
  // `make` runs without the lock, because it runs user code. So two threads may make the object at the same
  // time. The first one that stores it wins; the other object is destroyed after the lock has been released.
  std::shared_ptr<void> made = make();
  MutexLock lock(mutex_);
  std::weak_ptr<void>& slot = shared_[name];
  if (auto first = slot.lock()) return first;  // Another thread made the object at the same time.
  slot = made;
  return made;
}

// Returns the watchers that still exist, and keeps them alive while they are called without the lock.
std::vector<std::shared_ptr<Engine::Watcher>> Engine::watchers() {
  std::vector<std::shared_ptr<Watcher>> alive;
  MutexLock lock(mutex_);
  for (const auto& each : watchers_) {
    if (auto watcher = each.lock()) alive.push_back(std::move(watcher));
  }
  return alive;
}

void Engine::released(const std::shared_ptr<ContextState>& context) {
  passes_.release(*context);
  barrier_->released(context->id);
  for (const auto& watcher : watchers()) watcher->context_released(context->id);
}

// The order determines which error users get, because the first error of a pass counts. The passes come
// first and get the reason of the loss. After that the end of a context would abort its passes as released,
// which says nothing about the cause.
void Engine::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  for (const auto& pass : passes_.all()) pass->part().worker_lost(worker, reason);
  contexts_.worker_lost(worker);
  for (const auto& watcher : watchers()) watcher->worker_lost(worker, reason);
}

bool Engine::idle() const { return contexts_.cleanups_under_way() == 0; }

void Engine::shutdown(const absl::Status& reason) {
  passes_.shutdown(reason);
  barrier_->shutdown(reason);
  for (const auto& watcher : watchers()) watcher->shutdown(reason);
}

bool Engine::serves(uint32_t service) const { return service >= kMarkService && service <= kNeededService; }

// Both only end what is there already.
bool Engine::gives_back(uint32_t service) const {
  return service == kCleanupService || service == kAbortService;
}

// A RUN is served on arrival: if the thread of the root waits for gradients, the RUN is handed to that
// thread, and no other thread has to wake up for it.
bool Engine::serves_on_arrival(uint32_t service) const { return service == kRunService; }

void Engine::serve(rpc::ServiceCall call) { server_.serve(call); }

// ---- Contexts and passes for observers (proto/inspect.proto).

namespace {

// Fills the function of each awaited message that was the answer of a call, if the flight record has the
// call.
void name_callees(const rpc::CallRecorder& recorder,
                  const std::vector<std::shared_ptr<const SendNode>>& awaited, proto::PassSummary& out) {
  HashMap<rpc::CallIdentity, int> wanted;
  for (std::size_t i = 0; i < awaited.size(); ++i) {
    if (awaited[i]->answered()) wanted.emplace(awaited[i]->answered(), static_cast<int>(i));
  }
  const uint64_t next = recorder.next();
  const uint64_t first = std::max(recorder.first(), next - std::min<uint64_t>(next, rpc::kMostVisited));
  for (uint64_t record = next; record > first && !wanted.empty(); --record) {
    rpc::CallEvent event;
    if (!recorder.read(record - 1, event) || event.kind != rpc::CallEvent::Kind::kServed) continue;
    const auto found = wanted.find({event.peer, event.number});
    if (found == wanted.end()) continue;
    out.mutable_awaited(found->second)->set_callee(std::string(event.name_view()));
    wanted.erase(found);
  }
}

// The messages of a pass in the fast mode, which may wait for gradients that nobody sends.
void describe_messages(PassPart& part, const rpc::CallRecorder& recorder, uint32_t most,
                       proto::PassSummary& out) {
  const GraphMessages messages = part.messages(most);
  for (const std::shared_ptr<const SendNode>& node : messages.awaited()) {
    proto::GraphMessage& message = *out.add_awaited();
    message.set_peer(node->receiver());
    message.set_message(node->message());
  }
  for (const auto& [sender, number] : messages.reached()) {
    proto::GraphMessage& message = *out.add_reached();
    message.set_peer(sender);
    message.set_message(number);
  }
  out.set_reached_all(messages.all_reached());
  name_callees(recorder, messages.awaited(), out);
}

proto::PassSummary describe(Pass& pass, const ContextState& context, absl::Time now) {
  const PassState::View view = pass.part().view();
  const PassCalls& calls = pass.part().calls();
  proto::PassSummary out;
  out.set_root(pass.id().origin);
  out.set_number(pass.id().counter);
  out.set_context(public_id(context.id));
  out.set_age_us(std::max<int64_t>(0, absl::ToInt64Microseconds(now - pass.part().began())));
  out.set_left_us(calls.deadline() == absl::InfiniteFuture()
                      ? -1
                      : std::max<int64_t>(0, absl::ToInt64Microseconds(calls.deadline() - now)));
  out.set_running(view.running);
  out.set_remaining(view.remaining);
  out.set_busy(view.busy);
  for (const uint64_t worker : view.awaited) out.add_waits_for(worker);
  if (calls.parent()) rpc::to_proto(calls.parent(), *out.mutable_parent());
  return out;
}

}  // namespace

void Engine::inspect(uint32_t most, proto::AgentState& state) const {
  const absl::Time now = Clock::system().now();
  proto::AutogradState& out = *state.mutable_autograd();
  std::vector<proto::ContextSummary> contexts;
  std::vector<proto::PassSummary> passes;
  for (const std::shared_ptr<ContextState>& context : contexts_.all()) {
    std::vector<std::shared_ptr<Pass>> open;
    {
      MutexLock lock(context->mutex);
      for (const auto& [id, pass] : context->passes) {
        if (!pass->part().ended()) open.push_back(pass);
      }
    }
    proto::ContextSummary& entry = contexts.emplace_back();
    entry.set_id(public_id(context->id));
    entry.set_origin(context->id.origin);
    entry.set_passes(open.size());
    for (const std::shared_ptr<Pass>& pass : open) {
      proto::PassSummary& summary = passes.emplace_back(describe(*pass, *context, now));
      summary.set_fast(pass->part().calls().header().fast());
      if (summary.fast()) describe_messages(pass->part(), agent_.recorder(), most, summary);
    }
  }
  out.set_contexts_total(contexts.size());
  out.set_passes_total(passes.size());
  out.set_waiting_for_steps(barrier_->waiting());
  std::stable_sort(contexts.begin(), contexts.end(),
                   [](const auto& a, const auto& b) { return a.passes() > b.passes(); });
  std::stable_sort(passes.begin(), passes.end(),
                   [](const auto& a, const auto& b) { return a.age_us() > b.age_us(); });
  if (contexts.size() > most) contexts.resize(most);
  if (passes.size() > most) passes.resize(most);
  for (proto::ContextSummary& entry : contexts) *out.add_contexts() = std::move(entry);
  for (proto::PassSummary& entry : passes) {
    // A pass may have many workers.
    if (entry.waits_for_size() > static_cast<int>(most))
      entry.mutable_waits_for()->Truncate(static_cast<int>(most));
    *out.add_passes() = std::move(entry);
  }
}

}  // namespace gradwire::autograd
