#include "gradwire/autograd/context/contexts.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/limits/limit_refusals.h"

namespace gradwire::autograd {

thread_local uint64_t ActiveContextSlot::entered_at_ = 0;

void ActiveContextSlot::set(Value value) {
  // If the frame does not change, the thread continues its current interval.
  if (value == value_) return;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const uint64_t now = at::sequence_number::peek();
  if (value_ != nullptr && now == entered_at_) value_->timeline().leave_unused(*value_->frame(), thread, now);
  // The previous value is destroyed when this function returns.
  value_.swap(value);
  entered_at_ = now;
  if (value_ != nullptr) value_->timeline().enter(value_->frame(), thread, now);
}

const bool ActiveContextSlot::registered_ = [] {
  register_execution_slot({[] { return ExecutionState::Value(value_); },
                           [](ExecutionState::Value& value) {
                             if (value_ == value) return;
                             ExecutionState::Value previous = value_;
                             set(std::static_pointer_cast<const ActiveContext>(std::move(value)));
                             value = std::move(previous);
                           }});
  return true;
}();

namespace {

ContextTable::Bounds bounds_of(const rpc::AgentServices& agent) {
  ContextTable::Bounds limits;
  limits.live_of_sender = agent.caller_limits().max_contexts;
  return limits;
}

}  // namespace

Contexts::Contexts(rpc::AgentServices& agent, Listener released)
    : agent_(agent), released_(std::move(released)), table_(bounds_of(agent)) {}

std::shared_ptr<ContextState> Contexts::add_locked(const rpc::Id& context) {
  auto state = std::make_shared<ContextState>(context, agent_.self().incarnation, unjoined_gradients_);
  states_.emplace(context, state);
  by_public_id_.emplace(public_id(context), context);
  return state;
}

std::shared_ptr<ContextState> Contexts::open() {
  MutexLock lock(mutex_);
  // The id is allocated under the lock, because the watermark must not pass a counter that is not in the
  // table yet.
  const rpc::Id id = agent_.next_id();
  next_counter_ = id.counter + 1;
  table_.enter(id);
  return add_locked(id);
}

absl::StatusOr<std::shared_ptr<ContextState>> Contexts::enter(const rpc::Id& context, uint64_t from) {
  ContextTable::Entry entry;
  {
    MutexLock lock(mutex_);
    // This worker is not recorded as a party of its own contexts, because it never sees itself as lost.
    entry = table_.enter(context, from == agent_.self().incarnation ? 0 : from);
    if (entry == ContextTable::Entry::kLive) return states_.at(context);
    if (entry == ContextTable::Entry::kNew) return add_locked(context);
  }
  switch (entry) {
    case ContextTable::Entry::kReleased:
      note_late();
      return absl::NotFoundError(
          absl::StrCat("the autograd context ", rpc::to_string(context), " was released"));
    case ContextTable::Entry::kTooManyOfSender:
      return too_many_of(from);
    default:
      break;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot add the autograd context ", rpc::to_string(context), " on worker \"",
                   agent_.self().name, "\": too many contexts, at most ", ContextTable::kMaxLive,
                   " can be live; destroy Context objects that are not needed"));
}

absl::Status Contexts::too_many_of(uint64_t from) const {
  rpc::Worker sender;
  sender.incarnation = from;
  if (absl::StatusOr<rpc::Worker> known = agent_.find_worker_by_incarnation(from); known.ok())
    sender = *std::move(known);
  return agent_.refuse_over_limit(
      sender, {"live autograd contexts", "max_contexts", agent_.caller_limits().max_contexts});
}

absl::StatusOr<std::shared_ptr<ContextState>> Contexts::find(const rpc::Id& context) const {
  MutexLock lock(mutex_);
  auto found = states_.find(context);
  if (found != states_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "autograd context ", rpc::to_string(context), " not found on worker \"", agent_.self().name,
      "\": its Context object was destroyed, or no call in it has reached this worker"));
}

absl::StatusOr<std::shared_ptr<ContextState>> Contexts::find(int64_t public_id) const {
  MutexLock lock(mutex_);
  auto found = by_public_id_.find(public_id);
  if (found != by_public_id_.end()) return states_.at(found->second);
  return absl::NotFoundError(
      absl::StrCat("autograd context with id ", public_id, " not found on worker \"", agent_.self().name,
                   "\": its Context object was destroyed, or no call in it has reached this worker"));
}

std::shared_ptr<ContextState> Contexts::touch(const rpc::Id& context, uint64_t worker) {
  MutexLock lock(mutex_);
  auto found = states_.find(context);
  if (found == states_.end()) return nullptr;
  if (worker != agent_.self().incarnation) table_.touch(context, worker);
  return found->second;
}

std::vector<uint64_t> Contexts::touched(const rpc::Id& context) const {
  MutexLock lock(mutex_);
  return table_.touched(context);
}

// The states are moved into `gone` and destroyed without the lock: they hold tensors and nodes, whose
// destructors may run user code.
void Contexts::take_locked(const rpc::Id& context, const std::vector<uint64_t>& touched, Gone& gone) {
  auto found = states_.find(context);
  if (found == states_.end()) return;
  found->second->active->end();
  gone.states.push_back(std::move(found->second));
  states_.erase(found);
  by_public_id_.erase(public_id(context));
  for (uint64_t worker : touched) gone.to_notify.emplace_back(context, worker);
}

// Problem: the watermark is the lowest counter that is still live here, and it must not pass a context that
// is being opened. Steps, under one lock:
// 1. Remove the context from the table.
// 2. Compute the watermark, which may now be higher.
// 3. Record the watermark, which lets the table drop released counters below it.
// Without the lock, finish() then notifies the workers that got messages of the context.
void Contexts::release(const rpc::Id& context) {
  Gone gone;
  uint64_t low = 0;
  {
    MutexLock lock(mutex_);
    auto touched = table_.release(context, 0);
    low = table_.low(agent_.self().incarnation, next_counter_);
    table_.release(context, low);
    if (touched.has_value()) take_locked(context, *touched, gone);
  }
  finish(std::move(gone), low, context, 0);
}

absl::Status Contexts::cleanup(const rpc::Id& context, uint64_t low, uint64_t from) {
  const uint64_t self = agent_.self().incarnation;
  // Nothing is recorded for an origin that has left or never existed, because no worker would end that
  // record.
  const bool known = context.origin == from || agent_.find_worker_by_incarnation(context.origin).ok();
  Gone gone;
  bool refused = context.origin == self;
  if (!refused) {
    MutexLock lock(mutex_);
    if (!known && !table_.live(context)) return absl::OkStatus();
    const ContextTable::Cleanup cleanup = table_.cleanup(context, low, from);
    refused = cleanup.refused;
    for (const ContextTable::Ended& ended : cleanup.ended) take_locked(ended.context, ended.touched, gone);
  }
  finish(std::move(gone), low, context, from);
  if (!refused) return absl::OkStatus();
  refused_.fetch_add(1, std::memory_order_relaxed);
  return absl::PermissionDeniedError(absl::StrCat("cannot end the autograd context ", rpc::to_string(context),
                                                  ": got a request of a worker that does not take part in it "
                                                  "here, expected one of its origin or of a worker that "
                                                  "takes part; the context stays live"));
}

// 1. End the passes of the context here (the listener).
// 2. Send a CLEANUP to each worker that this worker sent messages to; that worker does the same, so the end
//    follows the messages. The worker that has reported the end, and the origin, know of it already.
// Nothing waits for the answers. They are only counted, because an agent that shuts down stays until its
// CLEANUPs have arrived (Engine::idle).
void Contexts::finish(Gone gone, uint64_t low, const rpc::Id& reported, uint64_t from) {
  for (const auto& state : gone.states) released_(state);
  for (const auto& [id, incarnation] : gone.to_notify) {
    if ((incarnation == from && id == reported) || incarnation == id.origin) continue;
    absl::StatusOr<rpc::Worker> worker = agent_.find_worker_by_incarnation(incarnation);
    if (!worker.ok()) continue;  // The worker has left, and its contexts with it.
    proto::Cleanup cleanup;
    rpc::to_proto(id, *cleanup.mutable_context());
    cleanup.set_low(low);
    cleanups_->fetch_add(1);
    agent_.call_service(*worker, kCleanupService, cleanup.SerializeAsString(), nullptr, {.repeat = true})
        .on_ready_inline([count = cleanups_](const auto&) { count->fetch_sub(1); });
  }
}

void Contexts::worker_lost(const rpc::Worker& worker) {
  Gone gone;
  {
    MutexLock lock(mutex_);
    for (const ContextTable::Ended& ended : table_.worker_lost(worker.incarnation)) {
      take_locked(ended.context, ended.touched, gone);
    }
    // The origin of these contexts is lost and cannot send a CLEANUP, so each worker ends them by itself.
    for (const rpc::Id& orphan : table_.origin_lost(worker.incarnation)) {
      if (auto touched = table_.release(orphan, 0)) take_locked(orphan, *touched, gone);
    }
  }
  if (gone.states.empty()) return;
  // The contexts own tensors and nodes of the program, and the thread that has found the loss may be on duty.
  // The end counts as a CLEANUP, which it may send.
  cleanups_->fetch_add(1);
  agent_.executor()->post_or_run([this, gone = std::move(gone)]() mutable {
    finish(std::move(gone), 0, {}, 0);
    cleanups_->fetch_sub(1);
  });
}

std::size_t Contexts::remembered() const {
  MutexLock lock(mutex_);
  return table_.remembered();
}

std::size_t Contexts::origins() const {
  MutexLock lock(mutex_);
  return table_.origins();
}

std::vector<std::shared_ptr<ContextState>> Contexts::all() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ContextState>> states;
  for (const auto& [id, state] : states_) states.push_back(state);
  return states;
}

std::size_t Contexts::size() const {
  MutexLock lock(mutex_);
  return states_.size();
}

}  // namespace gradwire::autograd
