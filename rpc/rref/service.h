#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/codec/id.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/link/arrival_order.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/rref/owned_values.h"
#include "gradwire/rpc/rref/reference_codec.h"
#include "gradwire/rpc/rref/reference_driver.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

class Agent;
class LimitRefusals;

// How many references another worker may hold to the values of an agent, and how many it may make the agent
// hold. `refusals` outlives its user; nullptr: no limit.
struct HoldLimit {
  uint64_t references = 0;
  LimitRefusals* refusals = nullptr;
};

// The references of one agent. It makes handles of the values that the agent owns (values()) and of the forks
// that it holds, and puts them into messages. The protocol runs in driver(). Thread-safe. Handles may outlive
// it.
class RRefService : public std::enable_shared_from_this<RRefService> {
 public:
  // The agent and the arrival_order outlive the service.
  RRefService(ReferenceHost& agent, ArrivalOrder& arrival_order, const HoldLimit& limit = {});

  OwnedValues& values() { return values_; }
  ReferenceDriver& driver() { return *driver_; }

  // Makes this agent the owner of the value, and returns a handle on it.
  std::shared_ptr<RRefHandle> own(std::shared_ptr<void> value, const TypeOps* type);

  // A remote() call in progress: the handle that its caller receives, and the fork that the request names.
  // When the caller is the owner, the handle is a local one, and the fork exists only until the call has
  // ended.
  struct Remote {
    std::shared_ptr<RRefHandle> handle;
    Id fork;
  };
  // `created` completes when the call ends. FailedPrecondition after shutdown.
  absl::StatusOr<Remote> begin_remote(const Worker& owner, const std::string& type, Promise<void> created);
  // The remote() call has ended with the status `created`. After an error it is unknown whether the owner has
  // the fork, so it is deleted in any case.
  void end_remote(const Remote& remote, const absl::Status& created);

  // Returns ResourceExhausted, and counts it, if the worker holds as many references to values of this agent
  // as it may.
  absl::Status check_hold(const Worker& holder) const;

  // ---- References in messages.

  // Adds a reference for `receiver` to the payload, with a fork if it needs one. Returns its index.
  // FailedPrecondition when the handle belongs to another agent; Unavailable when the receiver or the owner
  // is lost; ResourceExhausted when the receiver holds too many references to values of this agent.
  absl::StatusOr<uint32_t> add_reference(const std::shared_ptr<RRefHandle>& handle, const Worker& receiver,
                                         bool is_answer, proto::Payload& payload);
  // The message was sent on a connection. `closed` returns whether the connection has ended since. It is
  // called with the driver's lock held, so it must not block.
  void sent(const proto::Payload& payload, const Worker& receiver, absl::FunctionRef<bool()> closed);
  // The message was never sent: removes the forks that were made for its receiver.
  void undo(const proto::Payload& payload, const Worker& receiver);
  // Returns one handle for each of payload.references. InvalidArgument for a malformed reference.
  // ResourceExhausted when the agent holds too many references that `from` has sent.
  absl::StatusOr<std::vector<std::shared_ptr<RRefHandle>>> receive(const proto::Payload& payload,
                                                                   const Worker& from);

  static bool serves(uint32_t service) {
    return (service >= kForkAdd && service <= kForkDelete) ||
           (service >= kForkRevoke && service <= kCreationFailed);
  }
  // Serves a message of the protocol, in the order of arrival. Does not block.
  void serve(const ServiceCall& call);

  // nullptr while the agent is being destroyed.
  std::shared_ptr<Agent> agent() const { return driver_->agent(); }

 private:
  // The references that LimitRefusals names: to values of this agent, and those that this agent holds because
  // another worker has sent them.
  static constexpr absl::string_view kHeld = "references to values";
  static constexpr absl::string_view kGiven = "passed-on references";

  // Whether the limit is for this worker: an agent does not limit itself.
  bool limits(const Worker& worker) const;
  // Counts the refusal. `what`: the references of which there are too many.
  absl::Status refuse(const Worker& worker, absl::string_view what) const;
  absl::StatusOr<std::shared_ptr<RRefHandle>> receive_one(const proto::Reference& reference,
                                                          const Worker& from);

  ReferenceHost& agent_;
  const HoldLimit limit_;
  // Shared with the messages that have not been answered.
  const std::shared_ptr<ReferenceDriver> driver_;
  OwnedValues values_;
};

}  // namespace gradwire::rpc
