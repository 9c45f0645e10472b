#include "gradwire/rpc/callee/callee_list.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/registry/registry.h"

namespace gradwire::rpc {
namespace {

constexpr std::size_t kMaxPrefix = 4096;

// One candidate of the answer; `callee` is nullptr for an operator.
struct Candidate {
  std::string name;
  const Callee* callee = nullptr;
};

std::vector<Candidate> candidates(proto::CalleeEntry::Kind kind, absl::string_view prefix) {
  std::vector<Candidate> found;
  if (kind == proto::CalleeEntry::OPERATOR) {
    for (std::string& name : operator_names()) {
      if (absl::StartsWith(name, prefix)) found.push_back({std::move(name)});
    }
  } else {
    const CalleeKind registered = kind == proto::CalleeEntry::FUNCTION ? CalleeKind::kFunction
                                  : kind == proto::CalleeEntry::METHOD ? CalleeKind::kMethod
                                                                       : CalleeKind::kConstructor;
    for (const Callee* callee : Registry::instance().all(registered, prefix)) {
      found.push_back({callee->name, callee});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Candidate& a, const Candidate& b) { return a.name < b.name; });
  return found;
}

}  // namespace

absl::StatusOr<ServiceReply> serve_list_callees(const std::string& body) {
  proto::ListCallees request;
  if (!request.ParseFromString(body) || request.prefix().size() > kMaxPrefix) {
    return absl::InvalidArgumentError("malformed ListCallees message");
  }
  const std::size_t limit =
      request.limit() == 0 ? kMaxListedCallees : std::min<std::size_t>(request.limit(), kMaxListedCallees);
  proto::CalleeList list;
  std::size_t bytes = 0;
  for (int kind = std::max<uint32_t>(1, std::min<uint32_t>(request.after_kind(), 5)); kind <= 4; ++kind) {
    for (const Candidate& candidate :
         candidates(static_cast<proto::CalleeEntry::Kind>(kind), request.prefix())) {
      if (static_cast<uint32_t>(kind) == request.after_kind() && candidate.name <= request.after_name())
        continue;
      if (static_cast<std::size_t>(list.callees_size()) == limit || bytes > kMaxListedBytes) {
        list.set_more(true);
        break;
      }
      proto::CalleeEntry& entry = *list.add_callees();
      entry.set_kind(static_cast<proto::CalleeEntry::Kind>(kind));
      entry.set_name(candidate.name);
      bytes += candidate.name.size();
      if (candidate.callee == nullptr) continue;
      entry.set_signature(candidate.callee->signature);
      entry.set_object_type(candidate.callee->object_type);
      entry.set_idempotent(candidate.callee->idempotent);
      bytes += entry.signature().size() + entry.object_type().size();
    }
    if (list.more()) break;
  }
  ServiceReply reply;
  list.SerializeToString(&reply.body);
  return reply;
}

}  // namespace gradwire::rpc
