#pragma once

#include <memory>
#include <string>

#include "gradwire/base/future.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/worker.h"

namespace gradwire {
class Strand;
}

namespace gradwire::rpc {

class Agent;
class RRefService;
class StreamOrder;
struct TypeOps;

// A value in its owner's table.
struct OwnedValue {
  std::shared_ptr<void> value;
  const TypeOps* type = nullptr;
  // Runs the methods of a serial class one after the other; nullptr for other classes.
  std::shared_ptr<Strand> strand;
  // The order of the owner's device work; nullptr if it has no devices.
  std::shared_ptr<StreamOrder> order;
};

// The state that all copies of an RRef in one process share: one fork of the RRef, or one local handle on the
// owner. The destructor notifies the service. It sends nothing on its own thread and does not block.
// Immutable and thread-safe. May outlive the agent.
class RRefHandle {
 public:
  struct Parts {
    std::weak_ptr<RRefService> service;
    Id rref;
    // Empty on the owner.
    Id fork;
    Worker owner;
    std::string type;
    // Completes when the value exists: at once, except for handles made by remote().
    Future<void> created;
    // Completes when the owner has the fork in its table.
    Future<void> confirmed;
  };
  explicit RRefHandle(Parts parts) : parts_(std::move(parts)) {}
  ~RRefHandle();
  RRefHandle(const RRefHandle&) = delete;
  RRefHandle& operator=(const RRefHandle&) = delete;

  const Id& rref() const { return parts_.rref; }
  const Id& fork() const { return parts_.fork; }
  bool is_owner() const { return !parts_.fork; }
  const Worker& owner() const { return parts_.owner; }
  const std::string& type() const { return parts_.type; }
  const Future<void>& created() const { return parts_.created; }
  const Future<void>& confirmed() const { return parts_.confirmed; }
  // nullptr after the agent was destroyed.
  std::shared_ptr<RRefService> service() const { return parts_.service.lock(); }
  std::shared_ptr<Agent> agent() const;

 private:
  const Parts parts_;
};

}  // namespace gradwire::rpc
