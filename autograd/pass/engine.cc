#include "gradwire/autograd/pass/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/base/error.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/rpc/agent/agent_services.h"

namespace gradwire::autograd {
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

}  // namespace gradwire::autograd
