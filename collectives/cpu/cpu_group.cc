#include "gradwire/collectives/cpu/cpu_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives::cpu {
namespace {

// Of what keeps memory from being shared, the user's timeout alone ends the group: messages would come no sooner from a
// member that is not there. A store that fails says so again in the exchange that follows.
bool is_out_of_time(const absl::Status& status) { return absl::IsDeadlineExceeded(status); }

}  // namespace

CpuGroup::CpuGroup(Options options)
    : options_(std::move(options)),
      // The same on all members, and for no two groups of a job but by the rarest chance.
      base_channel_(stable_hash(options_.name) / kStride * kStride),
      leader_of_(options_.size) {}

CpuGroup::~CpuGroup() { options_.mesh->forget(channel(kPointToPoint)); }

absl::StatusOr<std::unique_ptr<CpuGroup>> CpuGroup::create(Options options) {
  std::unique_ptr<CpuGroup> group(new CpuGroup(std::move(options)));
  const Options& of = group->options_;
  GRADWIRE_RETURN_IF_ERROR(group->find_hosts());
  GRADWIRE_RETURN_IF_ERROR(group->share_memory());
  if (group->one_host()) GRADWIRE_RETURN_IF_ERROR(group->lay_lanes());
  std::vector<int> members(of.size);
  std::iota(members.begin(), members.end(), 0);
  // Where the numbers are the world's, errors name the right ones anyway.
  absl::flat_hash_map<int, int> names;
  if (of.world_ranks != members) {
    for (const int member : members) names[of.world_ranks[member]] = member;
    of.mesh->name_ranks(group->channel(kPointToPoint), names);
  }
  const auto between = [&](const std::vector<int>& those, Channel which) {
    MeshGroup::Options mesh_group{
        .mesh = of.mesh,
        .ranks = group->in_world(those),
        .position = static_cast<int>(std::find(those.begin(), those.end(), of.rank) - those.begin()),
        .names = names.empty() ? std::vector<int>() : those,
        .channel = group->channel(which)};
    if (of.small_bytes != 0) mesh_group.small_bytes = of.small_bytes;
    if (of.segment_bytes != 0) mesh_group.segment_bytes = of.segment_bytes;
    return std::make_unique<MeshGroup>(std::move(mesh_group));
  };
  group->all_ = between(members, kAll);
  if (group->layered() && group->leads()) group->between_leaders_ = between(group->leaders_, kLeaders);
  return group;
}

std::vector<int> CpuGroup::in_world(const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (int member : members) ranks.push_back(options_.world_ranks[member]);
  return ranks;
}

absl::StatusOr<std::vector<std::string>> CpuGroup::exchange(const std::string& what,
                                                            const std::string& mine) {
  GRADWIRE_RETURN_IF_ERROR(options_.store->try_set(absl::StrCat(what, "/", options_.rank), mine));
  std::vector<std::string> keys;
  for (int member = 0; member < options_.size; ++member) keys.push_back(absl::StrCat(what, "/", member));
  GRADWIRE_RETURN_IF_ERROR(options_.store->try_wait(keys, options_.timeout));
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    GRADWIRE_ASSIGN_OR_RETURN(std::string value, options_.store->try_get(key, options_.timeout));
    values.push_back(std::move(value));
  }
  return values;
}

absl::Status CpuGroup::find_hosts() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, exchange("host", options_.host));
  for (int member = 0; member < options_.size; ++member) {
    leader_of_[member] = member;
    if (hosts[member].empty()) continue;
    leader_of_[member] =
        static_cast<int>(std::find(hosts.begin(), hosts.begin() + member, hosts[member]) - hosts.begin());
  }
  return absl::OkStatus();
}

absl::Status CpuGroup::share_memory() {
  for (int member = 0; member < options_.size; ++member) {
    if (leader_of_[member] == leader_of_[options_.rank]) neighbours_.push_back(member);
  }
  std::string failure;
  if (neighbours_.size() > 1) {
    HostGroup::Options host;
    host.memory.index = static_cast<int>(std::find(neighbours_.begin(), neighbours_.end(), options_.rank) -
                                         neighbours_.begin());
    host.memory.size = static_cast<int>(neighbours_.size());
    host.memory.store = std::make_shared<store::PrefixStore>(
        absl::StrCat("memory/", neighbours_.front(), "/"), options_.store);
    host.memory.timeout = options_.timeout;
    if (options_.slot_bytes != 0) host.memory.slot_bytes = options_.slot_bytes;
    host.names = neighbours_;
    host.flat_bytes = options_.flat_bytes;
    absl::StatusOr<std::unique_ptr<HostGroup>> joined = HostGroup::join(std::move(host));
    if (joined.ok()) {
      host_ = *std::move(joined);
    } else if (is_out_of_time(joined.status())) {
      return joined.status();
    } else {
      failure = joined.status().ToString();
    }
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> failures, exchange("shares", failure));
  // Where it does not work for one member, it works for none of its host: another may have joined before that one gave up,
  // and would wait for it in the memory. There each member is a host of its own.
  std::vector<bool> apart(failures.size());
  for (int member = 0; member < options_.size; ++member) {
    if (!failures[member].empty()) apart[leader_of_[member]] = true;
  }
  if (apart[leader_of_[options_.rank]]) {
    const auto cause = std::find_if(neighbours_.begin(), neighbours_.end(),
                                    [&](int member) { return !failures[member].empty(); });
    log(LogLevel::kWarning, "ranks of this host exchange messages instead of sharing memory: rank ", *cause,
        ": ", failures[*cause]);
    host_.reset();
    neighbours_ = {options_.rank};
  }
  for (int member = 0; member < options_.size; ++member) {
    if (apart[leader_of_[member]]) leader_of_[member] = member;
    if (leader_of_[member] == member) leaders_.push_back(member);
  }
  return absl::OkStatus();
}

absl::Status CpuGroup::lay_lanes() {
  absl::StatusOr<std::unique_ptr<Lanes>> joined =
      Lanes::join({.rank = options_.rank,
                   .size = options_.size,
                   .store = std::make_shared<store::PrefixStore>("lanes/", options_.store),
                   .timeout = options_.timeout,
                   .executor = options_.mesh->executor()});
  if (is_out_of_time(joined.status())) return joined.status();
  const std::string failure = joined.ok() ? "" : joined.status().ToString();
  if (!failure.empty()) log(LogLevel::kWarning, "ranks of this host have no lanes: ", failure);
  // All have them, or none.
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> failures, exchange("lanes", failure));
  if (std::all_of(failures.begin(), failures.end(), [](const std::string& each) { return each.empty(); }))
    lanes_ = *std::move(joined);
  return absl::OkStatus();
}

absl::Status CpuGroup::over_hosts(absl::Status status) {
  if (!status.ok() && !absl::IsInvalidArgument(status)) abort(std::string(status.message()));
  return status;
}

absl::Status CpuGroup::barrier(absl::Time deadline) {
  if (one_host()) return host_->barrier(deadline);
  return over_hosts(all_->barrier(deadline));
}

absl::Status CpuGroup::broadcast(Span data, int root, absl::Time deadline) {
  if (one_host()) return host_->broadcast(data, root, deadline);
  if (!layered()) return over_hosts(all_->broadcast(data, root, deadline));
  return over_hosts([&]() -> absl::Status {
    const bool from_here = leader_of_[root] == leader_of_[options_.rank];
    const auto neighbour = [&](int member) {
      return static_cast<int>(std::find(neighbours_.begin(), neighbours_.end(), member) -
                              neighbours_.begin());
    };
    if (from_here && host_ != nullptr)
      GRADWIRE_RETURN_IF_ERROR(host_->broadcast(data, neighbour(root), deadline));
    if (leads()) {
      const auto leader = std::find(leaders_.begin(), leaders_.end(), leader_of_[root]) - leaders_.begin();
      GRADWIRE_RETURN_IF_ERROR(between_leaders_->broadcast(data, static_cast<int>(leader), deadline));
    }
    return from_here || host_ == nullptr ? absl::OkStatus() : host_->broadcast(data, 0, deadline);
  }());
}

absl::Status CpuGroup::reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) {
  if (one_host()) return host_->reduce(data, root, reducer, deadline);
  return over_hosts(all_->reduce(data, root, reducer, deadline));
}

absl::Status CpuGroup::all_reduce(Span data, const Reducer& reducer, absl::Time deadline) {
  if (one_host()) return host_->all_reduce(data, reducer, deadline);
  if (!layered()) return over_hosts(all_->all_reduce(data, reducer, deadline));
  return over_hosts([&]() -> absl::Status {
    if (host_ != nullptr) GRADWIRE_RETURN_IF_ERROR(host_->reduce(data, 0, reducer, deadline));
    if (leads()) GRADWIRE_RETURN_IF_ERROR(between_leaders_->all_reduce(data, reducer, deadline));
    return host_ == nullptr ? absl::OkStatus() : host_->broadcast(data, 0, deadline);
  }());
}

absl::Status CpuGroup::gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) {
  if (one_host()) return host_->gather(data, outputs, root, deadline);
  return over_hosts(all_->gather(data, outputs, root, deadline));
}

absl::Status CpuGroup::all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) {
  if (one_host()) return host_->all_gather(data, outputs, deadline);
  return over_hosts(all_->all_gather(data, outputs, deadline));
}

absl::Status CpuGroup::scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) {
  if (one_host()) return host_->scatter(data, inputs, root, deadline);
  return over_hosts(all_->scatter(data, inputs, root, deadline));
}

absl::Status CpuGroup::reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                                      absl::Time deadline) {
  if (one_host()) return host_->reduce_scatter(output, inputs, reducer, deadline);
  return over_hosts(all_->reduce_scatter(output, inputs, reducer, deadline));
}

absl::Status CpuGroup::all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                  absl::Time deadline) {
  if (one_host()) return host_->all_to_all(outputs, inputs, deadline);
  return over_hosts(all_->all_to_all(outputs, inputs, deadline));
}

Future<void> CpuGroup::send(int dst, int64_t tag, Span data, absl::Time deadline) {
  if (lanes_ != nullptr) return lanes_->send(dst, tag, data, deadline);
  return options_.mesh->send(options_.world_ranks[dst], channel(kPointToPoint), tag, data, deadline);
}

Future<int> CpuGroup::receive(int src, int64_t tag, Span data, absl::Time deadline) {
  if (lanes_ != nullptr) return lanes_->receive(src, tag, data, deadline);
  const int world_src = src == kAnyRank ? kAnyRank : options_.world_ranks[src];
  Future<int> received = options_.mesh->receive(world_src, channel(kPointToPoint), tag, data, deadline);
  const Promise<int> promise(received.executor());
  received.on_ready_inline([promise, ranks = options_.world_ranks](const absl::StatusOr<int>& from) {
    if (from.ok()) {
      promise.set_value(static_cast<int>(std::find(ranks.begin(), ranks.end(), *from) - ranks.begin()));
    } else {
      promise.set_error(from.status());
    }
  });
  promise.on_cancel([received] { received.cancel(); });
  return promise.future();
}

std::optional<absl::Status> CpuGroup::try_send(int dst, int64_t tag, Span data) {
  if (lanes_ == nullptr) return std::nullopt;
  return lanes_->try_send(dst, tag, data);
}

std::optional<absl::StatusOr<int>> CpuGroup::try_receive(int src, int64_t tag, Span data) {
  if (lanes_ == nullptr) return std::nullopt;
  return lanes_->try_receive(src, tag, data);
}

void CpuGroup::abort(const std::string& reason) {
  if (host_ != nullptr) host_->abort(reason);
  if (lanes_ != nullptr) lanes_->abort(absl::AbortedError(reason));
  options_.mesh->abort(channel(kPointToPoint), absl::AbortedError(reason));
  all_->abort(reason);
  if (between_leaders_ != nullptr) between_leaders_->abort(reason);
}

}  // namespace gradwire::collectives::cpu
