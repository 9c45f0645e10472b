#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/future.h"
#include "gradwire/codec/id.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/link/settlement.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/rref/owned_values.h"
#include "gradwire/rpc/rref/reference_codec.h"
#include "gradwire/rpc/rref/reference_driver.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Agent;

// The references of one agent: makes handles of the values it owns (values()) and of the forks it holds, and
// puts them into messages. What becomes of them the protocol decides (driver()). Thread-safe. Handles may
// outlive it.
class RRefService : public std::enable_shared_from_this<RRefService> {
 public:
  // Both outlive it.
  RRefService(ReferenceHost& agent, Settlement& settlement);

  OwnedValues& values() { return values_; }
  ReferenceDriver& driver() { return *driver_; }

  // A handle on a value that this agent owns from now on.
  std::shared_ptr<RRefHandle> own(std::shared_ptr<void> value, const TypeOps* type);

  // The result of a remote() call under way: the handle that its caller gets, and the fork that the request
  // names. On the owner itself that fork only bridges the time until the call has ended; the handle is a
  // local one.
  struct Remote {
    std::shared_ptr<RRefHandle> handle;
    Id fork;
  };
  // `created` completes the handle. FailedPrecondition after shutdown.
  absl::StatusOr<Remote> begin_remote(const Worker& owner, const std::string& type, Promise<void> created);
  // The remote() call has ended, as `created` says. After an error it is unknown whether the owner has the
  // fork: it is deleted all the same.
  void end_remote(const Remote& remote, const absl::Status& created);

  // ---- References in messages.

  // Adds a reference for `receiver`, with a fork where it needs one; returns its index. FailedPrecondition
  // when it is another agent's; Unavailable when the receiver or the owner is lost.
  absl::StatusOr<uint32_t> add_reference(const std::shared_ptr<RRefHandle>& handle, const Worker& receiver,
                                         bool is_answer, proto::Payload& payload);
  // The message has left on a connection, which has ended by now or not.
  void sent(const proto::Payload& payload, const Worker& receiver, bool closed);
  // The message never left: takes back the forks that were made for its receiver.
  void undo(const proto::Payload& payload, const Worker& receiver);
  // One handle for each of payload.references. InvalidArgument for what cannot be.
  absl::StatusOr<std::vector<std::shared_ptr<RRefHandle>>> receive(const proto::Payload& payload,
                                                                   const Worker& from);

  static bool serves(uint32_t service) {
    return (service >= kForkAdd && service <= kForkDelete) ||
           (service >= kForkRevoke && service <= kCreationFailed);
  }
  // Where the message arrived, before anything that arrives later. Does not block.
  void serve(const ServiceCall& call);

  // nullptr while the agent is being destroyed.
  std::shared_ptr<Agent> agent() const { return driver_->agent(); }

 private:
  absl::StatusOr<std::shared_ptr<RRefHandle>> receive_one(const proto::Reference& reference,
                                                          const Worker& from);

  ReferenceHost& agent_;
  // Messages under way keep it.
  const std::shared_ptr<ReferenceDriver> driver_;
  OwnedValues values_;
};

}  // namespace gradwire::rpc
