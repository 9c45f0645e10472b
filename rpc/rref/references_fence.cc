#include <algorithm>
#include <utility>

#include "gradwire/rpc/rref/references.h"

// What becomes of references when workers die.
namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;

void References::join(uint64_t member) {
  if (member != self_ && !lost_.contains(member)) members_.insert(member);
}

void References::lose(uint64_t member, Actions& actions) {
  if (member == self_ || !lost_.insert(member)) return;
  members_.erase(member);
  revoked_.erase(member);
  asked_.erase(member);
  absl::erase_if(outbox_, [member](const auto& entry) { return entry.second.to == member; });
  const bool keeps = owner_.has_forks_of(member) || holder_.has_children_of(member);
  owner_.lose_holder(member);
  for (const HolderTable::Fork& fork : holder_.lose_worker(member)) actions.refused.push_back(fork.fork);
  if (agreed_.erase(member) == 0) unfenced_.insert(member);
  if (keeps || fence_due_) {
    // Also when nothing is kept because of this one: it may have had what is kept because of another, and have passed it
    // on. So everybody is asked about all of them.
    fence_due_ = true;
    fence_running_ = false;
    if (unfenced_.empty()) start_fence(actions);
  }
  check_fences(actions);
}

void References::fence(uint64_t lost, Actions& actions) {
  if (lost != self_ && !lost_.contains(lost)) {
    agreed_.insert(lost);
    return;
  }
  if (unfenced_.erase(lost) == 0) return;
  if (fence_due_ && unfenced_.empty()) start_fence(actions);
}

void References::start_fence(Actions& actions) {
  ++round_;
  fence_running_ = true;
  waiting_for_ = members_;
  // Sorted, so that the same history gives the same messages.
  const std::vector<uint64_t> dead = lost_.sorted();
  for (uint64_t member : members_) {
    post({.kind = Kind::kFence, .to = member, .round = round_, .dead = dead}, actions);
  }
  check_fences(actions);
}

void References::end_fence(Actions& actions) {
  fence_due_ = false;
  fence_running_ = false;
  waiting_for_.clear();
  append(owner_.release_lost(), actions);
  send_deletes(holder_.release_lost(), actions);
}

void References::check_fences(Actions& actions) {
  if (!fence_running_ && asked_.empty()) return;
  // This worker, too, may have taken something from the dead that its owner does not know yet.
  if (holder_.has_unconfirmed_from(lost_.all())) return;
  if (fence_running_ && waiting_for_.empty()) end_fence(actions);
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    const std::vector<uint64_t>& dead = asked->second.dead;
    if (std::all_of(dead.begin(), dead.end(), [this](uint64_t worker) { return lost_.contains(worker); })) {
      actions.fence_answers.push_back({asked->first, asked->second.round});
      asked_.erase(asked++);
    } else {
      ++asked;
    }
  }
}

}  // namespace gradwire::rpc
