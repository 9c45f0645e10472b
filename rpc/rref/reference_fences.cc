#include "gradwire/rpc/rref/reference_fences.h"

#include <algorithm>

namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;
using Answer = ReferenceMessage::Answer;

void ReferenceFences::lose(uint64_t member, bool keeps, ReferencePeers& peers, ReferenceActions& actions) {
  asked_.erase(member);
  if (agreed_.erase(member) == 0) unfenced_.insert(member);
  if (keeps || due_) {
    // Also when nothing is kept because of this one: it may have had what is kept because of another, and
    // have passed it on. So everybody is asked about all of them.
    due_ = true;
    running_ = false;
    if (unfenced_.empty()) start(peers, actions);
  }
}

bool ReferenceFences::agree(uint64_t member, ReferencePeers& peers, ReferenceActions& actions) {
  if (member != peers.self() && !peers.is_lost(member)) {
    agreed_.insert(member);
    return false;
  }
  if (unfenced_.erase(member) == 0 || !due_ || !unfenced_.empty()) return false;
  start(peers, actions);
  return true;
}

void ReferenceFences::start(ReferencePeers& peers, ReferenceActions& actions) {
  ++round_;
  running_ = true;
  waiting_for_ = peers.members();
  // Sorted, so that the same history gives the same messages.
  const std::vector<uint64_t> dead = peers.lost().sorted();
  for (uint64_t member : peers.members()) {
    peers.post({.kind = Kind::kFence, .to = member, .round = round_, .dead = dead}, actions);
  }
}

bool ReferenceFences::take_answer(const ReferenceMessage& fence) {
  return fence.round == round_ && waiting_for_.erase(fence.to) > 0;
}

std::optional<Answer> ReferenceFences::ask(uint64_t asker, const ReferenceMessage& fence,
                                           const ReferencePeers& peers, ReferenceActions& actions) {
  Asked& asked = asked_[asker];
  if (fence.round < asked.round) return Answer::kDone;  // A repetition that came late: nobody waits for it.
  asked = {fence.round, fence.dead};
  for (uint64_t dead : fence.dead) {
    if (dead == peers.self()) {
      asked_.erase(asker);
      return Answer::kRefused;
    }
    if (!peers.is_lost(dead)) actions.accused.push_back(dead);
  }
  return std::nullopt;
}

bool ReferenceFences::end_ready(const HolderTable& holder, const GoneWorkers& lost,
                                ReferenceActions& actions) {
  if (!running_ && asked_.empty()) return false;
  // This worker, too, may have taken something from the dead that its owner does not know yet.
  if (holder.has_unconfirmed_from(lost.all())) return false;
  const bool ended = running_ && waiting_for_.empty();
  if (ended) due_ = running_ = false;
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    const std::vector<uint64_t>& dead = asked->second.dead;
    if (std::all_of(dead.begin(), dead.end(), [&lost](uint64_t worker) { return lost.contains(worker); })) {
      actions.fence_answers.push_back({asked->first, asked->second.round});
      asked_.erase(asked++);
    } else {
      ++asked;
    }
  }
  return ended;
}

}  // namespace gradwire::rpc
