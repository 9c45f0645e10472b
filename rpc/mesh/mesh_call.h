#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/mesh/group_call.h"

// The steps of calls to a mesh that do not depend on types.
namespace gradwire::rpc {
class Agent;
class RRefHandle;
}  // namespace gradwire::rpc

namespace gradwire::rpc::mesh_internal {

// How messages describe a call.
struct CallLabel {
  // Never nullptr.
  std::shared_ptr<const std::vector<std::string>> names;
  // For example `the call of "f"`.
  std::string action;
  absl::Duration timeout;
};

// Returns the index of a name. Throws NotFound, which lists the names.
std::size_t find_member(const std::vector<std::string>& names, absl::string_view name);

// The timeout of a call that starts now on this thread, for messages.
absl::Duration timeout_of_call(const Agent& agent, const std::optional<absl::Duration>& timeout);

// Where one member's call goes.
struct MemberTarget {
  Destination to;
  // The object of a method, which lives until the answer arrives; nullptr for a function.
  std::shared_ptr<RRefHandle> object;
};

// Sends the call of the member `index`. Returns its id.
uint64_t send_to(const std::shared_ptr<Agent>& agent, GroupCall& group, const MemberTarget& member,
                 std::size_t index, OutgoingCall::Completion done);

// Sends calls whose results, values of `type`, stay at the members. Throws an Error that names all members
// for which the call could not be sent.
std::vector<std::shared_ptr<RRefHandle>> send_remotes(const std::shared_ptr<Agent>& agent, GroupCall& group,
                                                      const CallLabel& label,
                                                      const std::vector<MemberTarget>& members,
                                                      const std::string& type);

// Cancels the calls with these ids that have not ended.
void cancel_all(const std::weak_ptr<Agent>& agent, const std::vector<uint64_t>& ids,
                const absl::Status& reason);

}  // namespace gradwire::rpc::mesh_internal
