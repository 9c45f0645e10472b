#include "autograd/contexts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "autograd/active_context.h"
#include "autograd/services.h"
#include "proto/autograd.pb.h"

namespace gradwire::autograd {

Contexts::Contexts(rpc::Agent& agent, Listener released) : agent_(agent), released_(std::move(released)) {}

std::shared_ptr<ContextState> Contexts::add_locked(const rpc::Id& context) {
  auto state = std::make_shared<ContextState>(context, agent_.self().incarnation);
  states_.emplace(context, state);
  by_public_id_.emplace(public_id(context), context);
  return state;
}

std::shared_ptr<ContextState> Contexts::open() {
  MutexLock lock(mutex_);
  // Under the lock: the watermark must not pass a counter that is not in the table yet.
  const rpc::Id id = agent_.next_id();
  next_counter_ = id.counter + 1;
  table_.enter(id);
  return add_locked(id);
}

absl::StatusOr<std::shared_ptr<ContextState>> Contexts::enter(const rpc::Id& context) {
  MutexLock lock(mutex_);
  switch (table_.enter(context)) {
    case ContextTable::Entry::kLive:
      return states_.at(context);
    case ContextTable::Entry::kNew:
      return add_locked(context);
    case ContextTable::Entry::kReleased:
      note_late();
      return absl::NotFoundError(
          absl::StrCat("the autograd context ", rpc::to_string(context), " was released"));
    case ContextTable::Entry::kTooMany:
      break;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(ContextTable::kMaxLive, " autograd contexts live here already"));
}

absl::StatusOr<std::shared_ptr<ContextState>> Contexts::find(const rpc::Id& context) const {
  MutexLock lock(mutex_);
  auto found = states_.find(context);
  if (found != states_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("worker \"", agent_.self().name, "\" knows no autograd context ", rpc::to_string(context),
                   ": it was released (its Context object died), or no call in it has reached this worker"));
}

absl::StatusOr<std::shared_ptr<ContextState>> Contexts::find(int64_t public_id) const {
  MutexLock lock(mutex_);
  auto found = by_public_id_.find(public_id);
  if (found != by_public_id_.end()) return states_.at(found->second);
  return absl::NotFoundError(
      absl::StrCat("worker \"", agent_.self().name, "\" knows no autograd context with the id ", public_id,
                   ": it was released (its Context object died), or no call in it has reached this worker"));
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

void Contexts::release(const rpc::Id& context, uint64_t low, uint64_t from) {
  const uint64_t self = agent_.self().incarnation;
  std::vector<std::shared_ptr<ContextState>> states;
  std::vector<std::pair<rpc::Id, uint64_t>> to_tell;
  {
    MutexLock lock(mutex_);
    std::vector<rpc::Id> ending{context};
    for (std::size_t i = 0; i < ending.size(); ++i) {
      const rpc::Id each = ending[i];
      auto touched = table_.release(each, each.origin == self ? 0 : low);
      if (i == 0 && context.origin == self) {
        low = table_.low(self, next_counter_);
        table_.release(each, low);
      }
      // Others below the watermark: their own CLEANUP is on its way, or was lost with a worker between.
      if (i == 0) {
        for (const rpc::Id& overdue : table_.overdue(context.origin)) ending.push_back(overdue);
      }
      if (!touched.has_value()) continue;
      auto found = states_.find(each);
      states.push_back(std::move(found->second));
      states_.erase(found);
      by_public_id_.erase(public_id(each));
      for (uint64_t worker : *touched) to_tell.emplace_back(each, worker);
    }
  }
  for (const auto& state : states) released_(state);
  for (const auto& [id, incarnation] : to_tell) {
    if (incarnation == from || incarnation == id.origin) continue;
    absl::StatusOr<rpc::Worker> worker = agent_.find_worker_by_incarnation(incarnation);
    if (!worker.ok()) continue;  // Gone, and its contexts with it.
    proto::Cleanup cleanup;
    rpc::to_proto(id, *cleanup.mutable_context());
    cleanup.set_low(low);
    cleanups_->fetch_add(1);
    agent_.call_service(*worker, kCleanupService, cleanup.SerializeAsString(), nullptr, {.repeat = true})
        .on_ready_inline([count = cleanups_](const auto&) { count->fetch_sub(1); });
  }
}

void Contexts::worker_lost(const rpc::Worker& worker) {
  std::vector<rpc::Id> orphans;
  {
    MutexLock lock(mutex_);
    table_.worker_lost(worker.incarnation);
    orphans = table_.origin_lost(worker.incarnation);
  }
  for (const rpc::Id& orphan : orphans) release(orphan, 0, worker.incarnation);
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
