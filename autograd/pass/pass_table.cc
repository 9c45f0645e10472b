#include "gradwire/autograd/pass/pass_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/flight/call_recorder.h"

namespace gradwire::autograd {

namespace {

absl::Status released_status(const rpc::Id& context) {
  return absl::AbortedError(absl::StrCat("the autograd context ", rpc::to_string(context), " was released"));
}

}  // namespace

// Messages of a pass arrive on several threads, and any of them may be the first. So the pass is found or
// made in one critical section.
// 1. Return the pass if it exists, also if it has ended: it answers repetitions.
// 2. Otherwise make it, and make room for it.
// 3. If it must not begin, abort it instead of storing it. The caller then uses it as any other pass, and
//    its messages and its root get the error.
// `forgotten` is destroyed after the lock has been released.
std::shared_ptr<Pass> PassTable::pass_of(const std::shared_ptr<ContextState>& context,
                                         const proto::Pass& header, absl::Time deadline) const {
  std::shared_ptr<Pass> pass, forgotten;
  absl::Status refused;
  const rpc::CallParent parent =
      header.pass().origin() == agent_.self().incarnation ? rpc::current_parent() : rpc::CallParent();
  {
    MutexLock lock(context->mutex);
    auto found = context->passes.find(rpc::from_proto(header.pass()));
    if (found != context->passes.end()) return found->second;
    const uint64_t record =
        agent_.recorder().begin(rpc::CallEvent::Kind::kPass, header.pass().origin(), header.pass().counter(),
                                parent, "backward pass", Clock::system().now());
    pass = std::make_shared<Pass>(
        PassCalls::Options{agent_.weak_agent(), agent_.self(), header, deadline, parent}, context,
        [barrier = barrier_, id = context->id, record,
         agent = agent_.weak_agent()](const absl::Status& status) {
          if (const std::shared_ptr<rpc::Agent> alive = agent.lock())
            alive->services().recorder().ended(record, Clock::system().now(), status.code());
          // After an error the context still counts as forwarding, because another
          // pass may follow.
          std::shared_ptr<StepBarrierDriver> alive = barrier.lock();
          if (status.ok() && alive != nullptr) alive->backward_ended(id);
        });
    if (context->released) {
      refused = released_status(context->id);
    } else if (absl::Status stop = stopped(rpc::from_proto(header.pass())); !stop.ok()) {
      refused = std::move(stop);
    } else if (!make_room(*context, forgotten)) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("cannot begin a backward pass in the autograd context ", rpc::to_string(context->id),
                       ": got ", context->passes.size(), " passes that have not ended, expected fewer than ",
                       ContextState::kMaxPasses, "; wait for some to end"));
    } else {
      context->passes.emplace(pass->id(), pass);
      context->pass_order.push_back(pass->id());
      return pass;
    }
  }
  pass->part().abort(refused);
  return pass;
}

bool PassTable::make_room(ContextState& context, std::shared_ptr<Pass>& forgotten) {
  if (context.passes.size() < ContextState::kMaxPasses) return true;
  for (auto oldest = context.pass_order.begin(); oldest != context.pass_order.end(); ++oldest) {
    auto pass = context.passes.find(*oldest);
    if (!pass->second->part().ended()) continue;
    forgotten = std::move(pass->second);
    context.passes.erase(pass);
    context.pass_order.erase(oldest);
    return true;
  }
  return false;
}

std::shared_ptr<Pass> PassTable::begin(const std::shared_ptr<ContextState>& context, proto::Pass header,
                                       absl::Time deadline) const {
  rpc::to_proto(context->id, *header.mutable_context());
  rpc::to_proto(agent_.next_id(), *header.mutable_pass());
  return pass_of(context, header, deadline);
}

absl::StatusOr<std::shared_ptr<Pass>> PassTable::find(const proto::Pass& header, absl::Time deadline) const {
  auto context = contexts_.find(rpc::from_proto(header.context()));
  if (context.ok()) return pass_of(*context, header, deadline);
  contexts_.note_late();
  return context.status();
}

absl::StatusOr<std::shared_ptr<Pass>> PassTable::join(const proto::Pass& header, uint64_t from,
                                                      absl::Time deadline) const {
  GRADWIRE_ASSIGN_OR_RETURN(auto context, contexts_.enter(rpc::from_proto(header.context()), from));
  return pass_of(context, header, deadline);
}

void PassTable::release(ContextState& context) {
  {
    MutexLock lock(context.mutex);
    // From now on pass_of() aborts new passes, so no pass is added after they have been taken.
    context.released = true;
  }
  const Held held = take(context);
  for (const auto& [id, pass] : held.passes) pass->part().abort(released_status(context.id));
}

// 1. Refuse new passes. pass_of() reads `stopped_` with the lock of the context held, so it has stored a pass
//    that was not refused before step 2.
// 2. Take the passes and the send nodes out of the contexts. They hold the context, and the graph behind a
//    node may hold the agent. Nobody releases the contexts of an agent that has shut down, so this is the
//    last chance to break these cycles.
// 3. Abort the passes, and then destroy them, without a lock.
void PassTable::shutdown(const absl::Status& reason) {
  {
    MutexLock lock(mutex_);
    stopped_ = reason;
  }
  for (const auto& context : contexts_.all()) {
    const Held held = take(*context);
    for (const auto& [id, pass] : held.passes) pass->part().abort(stopped(id));
  }
}

PassTable::Held PassTable::take(ContextState& context) {
  Held held;
  MutexLock lock(context.mutex);
  held.passes.swap(context.passes);
  context.pass_order.clear();
  held.nodes.swap(context.send_nodes);
  return held;
}

absl::Status PassTable::stopped(const rpc::Id& pass) const {
  const rpc::Worker& self = agent_.self();
  MutexLock lock(mutex_);
  if (stopped_.ok() || pass.origin == self.incarnation) return stopped_;
  // For the root of the pass this worker is a lost worker.
  return with_worker(
      absl::UnavailableError(
          absl::StrCat("worker \"", self.name, "\" shut down during a backward pass: ", stopped_.message())),
      self.name);
}

std::vector<std::shared_ptr<Pass>> PassTable::all() const {
  std::vector<std::shared_ptr<Pass>> passes;
  for (const auto& context : contexts_.all()) {
    MutexLock lock(context->mutex);
    for (const auto& [id, pass] : context->passes) passes.push_back(pass);
  }
  return passes;
}

}  // namespace gradwire::autograd
