#include "gradwire/rpc/flight/call_report.h"

#include "absl/container/flat_hash_set.h"

namespace gradwire::rpc {

void find_nested(const std::vector<CallReport>& made, std::vector<CallReport>& served) {
  absl::flat_hash_set<CallIdentity> parents;
  for (const CallReport& call : made) {
    if (call.parent.kind == CallParent::Kind::kCall)
      parents.insert({call.parent.incarnation, call.parent.number});
  }
  for (CallReport& call : served) {
    if (call.state == CallState::kRunning && parents.contains(call.identity)) call.state = CallState::kNested;
  }
}

}  // namespace gradwire::rpc
