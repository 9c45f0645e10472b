#include "gradwire/rpc/rref/reference_fences.h"

#include <algorithm>

// Two threads report the end of a worker: lose() comes from its connection or its host, agree() from the
// reader of the log. They may come in either order, and a fence starts only when both have come for every
// lost worker: agreed_ and unfenced_ hold the first of the two.
namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;
using Answer = ReferenceMessage::Answer;

void ReferenceFences::lose(uint64_t member, bool keeps, ReferencePeers& peers, ReferenceActions& actions) {
  // The lost worker waits for no answer any more.
  asked_.erase(member);
  if (agreed_.erase(member) == 0) unfenced_.insert(member);
  if (keeps || due_) {
    // Start again even if nothing is kept because of this worker: it may have held and passed on what is kept
    // because of another lost worker. So all members are asked about all lost workers.
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
  // A new number: an answer to an earlier round does not count for this one, which names more lost workers.
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
  if (fence.round < asked.round) return Answer::kDone;  // A late repetition, whose answer is not awaited.
  asked = {fence.round, fence.dead};
  for (uint64_t dead : fence.dead) {
    // The group has lost this worker. Its answer must not let others drop anything.
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
  // This worker may also have accepted a fork from a lost worker that the owner does not know yet.
  // Until the owner has such a fork in its table, only what others keep because of the lost worker may keep
  // the value alive.
  if (holder.has_unconfirmed_from(lost.all())) return false;
  const bool ended = running_ && waiting_for_.empty();
  if (ended) due_ = running_ = false;
  // Answer the fences whose workers are all lost here. The others wait until the accusation has made this
  // worker lose them.
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
