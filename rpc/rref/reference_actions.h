#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/codec/id.h"
#include "gradwire/rpc/rref/reference_message.h"

namespace gradwire::rpc {

// The actions that follow from an event of the reference protocol, to be performed in any order.
struct ReferenceActions {
  // Messages to send until they are answered. ReferencePeers::unacknowledged() returns them, too.
  std::vector<ReferenceMessage> send;
  // RRefs of this worker without references.
  std::vector<Id> freed;
  // Forks of this worker that the owner has in its table (confirmed), or never will (refused): because the
  // owner is lost, or has declared this worker lost.
  std::vector<Id> confirmed;
  std::vector<Id> refused;
  // Workers that another worker declared dead, and that this worker did not know to be dead.
  std::vector<uint64_t> accused;
  // Fences of others to answer now with kDone: the asker and the round.
  struct FenceAnswer {
    uint64_t asker;
    uint64_t round;
  };
  std::vector<FenceAnswer> fence_answers;

  void free(const std::vector<Id>& rrefs) { freed.insert(freed.end(), rrefs.begin(), rrefs.end()); }
};

}  // namespace gradwire::rpc
