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
  absl::erase_if(outbox_, [member](const auto& entry) { return entry.second.to == member; });
  unacknowledged_.remove_all(member);
  return true;
}

void ReferencePeers::post(ReferenceMessage message, ReferenceActions& actions) {
  // Nobody would answer, and no later event would remove the message.
  if (lost_.contains(message.to)) return;
  // A message with the same key replaces the one before, as a fence with a higher round does.
  if (outbox_.insert_or_assign(key_of(message), message).second) unacknowledged_.add(message.to);
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
  auto sent = outbox_.find(key_of(message));
  if (sent == outbox_.end() || sent->second.round != message.round) return false;
  unacknowledged_.remove(message.to);
  outbox_.erase(sent);
  return true;
}

std::vector<ReferenceMessage> ReferencePeers::unacknowledged(uint64_t to) const {
  std::vector<ReferenceMessage> messages;
  for (const auto& [key, message] : outbox_) {
    if (message.to == to) messages.push_back(message);
  }
  return messages;
}

}  // namespace gradwire::rpc
