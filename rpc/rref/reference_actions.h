#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/codec/id.h"
#include "gradwire/rpc/rref/reference_message.h"

namespace gradwire::rpc {

// What is to be done because of an event of the reference protocol, in any order.
struct ReferenceActions {
  // To be sent, and again until there is an answer; ReferencePeers::unacknowledged() has them too.
  std::vector<ReferenceMessage> send;
  // RRefs owned here that nobody refers to any more.
  std::vector<Id> freed;
  // Forks held here: the owner has them in its table; or never will, because it is lost, or has lost this
  // worker.
  std::vector<Id> confirmed;
  std::vector<Id> refused;
  // Workers that somebody says are dead, and that are not known to be dead here.
  std::vector<uint64_t> accused;
  // Fences of others to be answered now (kDone): who asked, and the round.
  struct FenceAnswer {
    uint64_t asker;
    uint64_t round;
  };
  std::vector<FenceAnswer> fence_answers;

  void free(const std::vector<Id>& rrefs) { freed.insert(freed.end(), rrefs.begin(), rrefs.end()); }
};

}  // namespace gradwire::rpc
