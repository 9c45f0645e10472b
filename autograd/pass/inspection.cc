// Contexts and passes for observers (proto/inspect.proto).
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/clock.h"
#include "gradwire/proto/inspect.pb.h"

namespace gradwire::autograd {
namespace {

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
  for (const uint64_t worker : view.awaited) out.add_waits_for(worker);
  if (const rpc::CallParent& parent = calls.parent(); parent) {
    proto::CallOrigin& origin = *out.mutable_parent();
    origin.set_kind(parent.kind == rpc::CallParent::Kind::kCall ? proto::CallOrigin::CALL
                                                                : proto::CallOrigin::PASS);
    origin.set_incarnation(parent.incarnation);
    origin.set_number(parent.number);
  }
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
    for (const std::shared_ptr<Pass>& pass : open) passes.push_back(describe(*pass, *context, now));
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
