#include "gradwire/rpc/rref/reference_peers.h"

#include <utility>

namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;

void ReferencePeers::join(uint64_t member) {
  if (member != self_ && !lost_.contains(member)) members_.insert(member);
}

bool ReferencePeers::lose(uint64_t member) {
  if (member == self_ || !lost_.insert(member)) return false;
  members_.erase(member);
  total_unacknowledged_ -= count_unacknowledged(member);
  outbox_.erase(member);
  return true;
}

void ReferencePeers::post(ReferenceMessage message, ReferenceActions& actions) {
  // Nobody would answer, and no later event would remove the message.
  if (lost_.contains(message.to)) return;
  // A message with the same key replaces the one before, as a fence with a higher round does.
  if (outbox_[message.to].insert_or_assign(key_of(message), message).second) ++total_unacknowledged_;
  actions.send.push_back(std::move(message));
}

void ReferencePeers::post_confirm(uint64_t sharer, const Id& rref, const Id& fork,
                                  ReferenceActions& actions) {
  post({.kind = Kind::kConfirm, .to = sharer, .rref = rref, .fork = fork}, actions);
}

void ReferencePeers::post_deletes(const HolderTable::Deletes& deletes, ReferenceActions& actions) {
  for (const HolderTable::Fork& fork : deletes) {
    post({.kind = Kind::kDelete, .to = fork.owner, .rref = fork.rref, .fork = fork.fork}, actions);
  }
}

bool ReferencePeers::take_answered(const ReferenceMessage& message) {
  // A message may be answered twice, because it is repeated. Only the first answer counts, and only for the
  // round that is in the outbox.
  auto messages = outbox_.find(message.to);
  if (messages == outbox_.end()) return false;
  auto sent = messages->second.find(key_of(message));
  if (sent == messages->second.end() || sent->second.round != message.round) return false;
  --total_unacknowledged_;
  messages->second.erase(sent);
  if (messages->second.empty()) outbox_.erase(messages);
  return true;
}

std::vector<ReferenceMessage> ReferencePeers::unacknowledged(uint64_t to) const {
  std::vector<ReferenceMessage> messages;
  auto unanswered = outbox_.find(to);
  if (unanswered == outbox_.end()) return messages;
  for (const auto& [key, message] : unanswered->second) messages.push_back(message);
  return messages;
}

bool ReferencePeers::consistent() const {
  std::size_t total = 0;
  for (const auto& [to, messages] : outbox_) {
    if (messages.empty()) return false;
    total += messages.size();
    for (const auto& [key, message] : messages) {
      if (message.to != to || key_of(message) != key) return false;
    }
  }
  return total == total_unacknowledged_;
}

}  // namespace gradwire::rpc
