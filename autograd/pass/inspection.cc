// Contexts and passes for observers (proto/inspect.proto).
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/clock.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/agent/agent_services.h"
#include "gradwire/rpc/flight/call_origin.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/inspect/limits.h"

namespace gradwire::autograd {
namespace {

// Fills the function of each awaited message that was the answer of a call, if the flight record has the
// call.
void name_callees(const rpc::CallRecorder& recorder,
                  const std::vector<std::shared_ptr<const SendNode>>& awaited, proto::PassSummary& out) {
  absl::flat_hash_map<rpc::CallIdentity, int> wanted;
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
