#include "gradwire/rpc/mesh.h"

#include <algorithm>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/calls/agent_services.h"

namespace gradwire::rpc {
namespace {

std::shared_ptr<Agent> given_or_current(std::shared_ptr<Agent> agent) {
  return agent == nullptr ? Agent::current() : std::move(agent);
}

}  // namespace

Mesh::Mesh(std::vector<std::string> names, std::vector<MeshDimension> dimensions,
           std::shared_ptr<Agent> agent) {
  agent = given_or_current(std::move(agent));
  agent_ = agent;
  shape_ = value_or_throw(MeshShape::create(std::move(dimensions), names.size()));
  HashSet<absl::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      throw Error(absl::InvalidArgumentError(absl::StrCat("worker \"", name, "\" occurs twice in the mesh")));
    }
    (void)agent->get_worker_info(name);
  }
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
}

Mesh::Mesh(const Mesh& whole, const MeshShape::Part& part)
    : agent_(whole.agent_), shape_(part.shape), timeout_(whole.timeout_) {
  std::vector<std::string> names;
  for (const std::size_t position : part.positions) names.push_back((*whole.names_)[position]);
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
}

Mesh Mesh::of_ranks(const std::vector<int32_t>& ranks, std::vector<MeshDimension> dimensions,
                    std::shared_ptr<Agent> agent) {
  agent = given_or_current(std::move(agent));
  std::vector<std::string> names;
  for (const int32_t rank : ranks)
    names.push_back(value_or_throw(agent->services().find_worker(Destination(rank))).name);
  return Mesh(std::move(names), std::move(dimensions), std::move(agent));
}

Mesh Mesh::all(std::shared_ptr<Agent> agent) {
  agent = given_or_current(std::move(agent));
  std::vector<WorkerInfo> workers = agent->get_worker_infos();
  std::sort(workers.begin(), workers.end(),
            [](const WorkerInfo& a, const WorkerInfo& b) { return a.id < b.id; });
  std::vector<std::string> names;
  for (const WorkerInfo& info : workers) {
    const absl::StatusOr<Worker> worker = agent->services().find_worker(info);
    if (worker.ok() && agent->services().worker_status(*worker).ok()) names.push_back(info.name);
  }
  return Mesh(std::move(names), {}, std::move(agent));
}

const std::string& Mesh::at(std::vector<int64_t> indices) const {
  return (*names_)[value_or_throw(shape_.position(indices))];
}

Mesh Mesh::slice(absl::string_view dimension, int64_t index) const {
  return Mesh(*this, value_or_throw(shape_.slice(dimension, index)));
}

Mesh Mesh::slice(absl::string_view dimension, int64_t begin, int64_t end) const {
  return Mesh(*this, value_or_throw(shape_.slice(dimension, begin, end)));
}

Mesh Mesh::flatten(std::string dimension) const {
  Mesh flat = *this;
  flat.shape_ =
      value_or_throw(MeshShape::create({{std::move(dimension), static_cast<int64_t>(size())}}, size()));
  return flat;
}

Mesh Mesh::without(const std::vector<std::string>& names) const {
  HashSet<std::size_t> dropped;
  for (const std::string& name : names) dropped.insert(mesh_internal::find_member(*names_, name));
  MeshShape::Part part;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!dropped.contains(i)) part.positions.push_back(i);
  }
  part.shape = value_or_throw(MeshShape::create({}, part.positions.size()));
  return Mesh(*this, part);
}

Mesh Mesh::with_timeout(absl::Duration timeout) const {
  Mesh copy = *this;
  copy.timeout_ = timeout;
  return copy;
}

std::shared_ptr<Agent> Mesh::agent() const {
  std::shared_ptr<Agent> agent = agent_.lock();
  if (agent == nullptr) throw Error(absl::FailedPreconditionError("the agent of the mesh was destroyed"));
  return agent;
}

mesh_internal::CallLabel Mesh::label(const Agent& agent, absl::string_view callee) const {
  return {names_, absl::StrCat("the call of \"", callee, "\""),
          mesh_internal::timeout_of_call(agent, timeout_)};
}

std::vector<mesh_internal::MemberTarget> Mesh::targets() const {
  std::vector<mesh_internal::MemberTarget> targets;
  targets.reserve(size());
  for (const std::string& name : *names_) targets.push_back({destination(name), nullptr});
  return targets;
}

Mesh::Located Mesh::locate(Agent& agent) const {
  if (size() > mesh_internal::kMaxBroadcastMembers) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "a broadcast has at most ", mesh_internal::kMaxBroadcastMembers, " members, got ", size())));
  }
  Located located;
  for (const std::string& name : *names_) {
    absl::StatusOr<Worker> worker = agent.services().find_worker(Destination(name));
    absl::Status status = worker.ok() ? agent.services().worker_status(*worker) : worker.status();
    if (status.ok()) located.incarnations.push_back(worker->incarnation);
    located.failures.push_back(std::move(status));
  }
  return located;
}

std::vector<std::shared_ptr<RRefHandle>> Mesh::spread(const Agent& agent, Located located,
                                                      mesh_internal::RelayTree& tree) const {
  mesh_internal::CallLabel label = this->label(agent, "");
  const Future<mesh_internal::RelayOutcome> future = tree.start(tree.plan().children_of_root());
  absl::StatusOr<mesh_internal::RelayOutcome> outcome = future.result();
  // The wait may be refused. Then the calls end now, because they use the value of the caller.
  if (!outcome.ok()) tree.cancel(outcome.status());
  throw_if_error(outcome.status());
  HashMap<uint64_t, std::shared_ptr<RRefHandle>> delivered;
  for (auto& [incarnation, handle] : outcome->delivered) delivered.emplace(incarnation, std::move(handle));
  HashMap<uint64_t, absl::Status> failed;
  for (const auto& [incarnation, code, text] : outcome->failed)
    failed.emplace(incarnation, absl::Status(static_cast<absl::StatusCode>(code), text));

  std::vector<std::shared_ptr<RRefHandle>> handles;
  std::vector<MemberFailure> failures;
  std::size_t next = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!located.failures[i].ok()) {
      failures.push_back({names()[i], located.failures[i]});
      continue;
    }
    const uint64_t incarnation = located.incarnations[next++];
    if (const auto found = delivered.find(incarnation); found != delivered.end()) {
      handles.push_back(found->second);
    } else {
      failures.push_back({names()[i], failed[incarnation]});
    }
  }
  throw_if_error(failure_of_members("the broadcast", size(), label.timeout, failures));
  return handles;
}

}  // namespace gradwire::rpc
