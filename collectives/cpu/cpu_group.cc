// Chooses for each operation between shared memory (HostGroup, ShmP2p) and messages (P2pGroup). Broadcast
// and all-reduce over several hosts use both, if a host has several members (layered()): the members of a
// host first, then the leaders of the hosts, then the members of each host again. The other operations use
// messages between all members.

#include "gradwire/collectives/cpu/cpu_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"

namespace gradwire::collectives::cpu {

CpuGroup::CpuGroup(Options options)
    : options_(std::move(options)),
      // The same on all members. Two groups of a job get the same channel only if their hashes collide.
      base_channel_(stable_hash(options_.name) / kStride * kStride) {}

// The WorldP2p outlives the group. Late messages of other members must not wait in it.
CpuGroup::~CpuGroup() { options_.p2p->forget(channel(kPointToPoint)); }

absl::StatusOr<std::unique_ptr<CpuGroup>> CpuGroup::create(Options options) {
  std::unique_ptr<CpuGroup> group(new CpuGroup(std::move(options)));
  const Options& of = group->options_;
  GRADWIRE_ASSIGN_OR_RETURN(group->layout_, lay_out_hosts({.rank = of.rank,
                                                           .size = of.size,
                                                           .store = of.store,
                                                           .timeout = of.timeout,
                                                           .host = of.host,
                                                           .slot_bytes = of.slot_bytes,
                                                           .flat_bytes = of.flat_bytes,
                                                           .executor = of.p2p->executor()}));
  std::vector<int> members(of.size);
  std::iota(members.begin(), members.end(), 0);
  // If the group's ranks equal the world's, errors name the right ranks without a map.
  HashMap<int, int> names;
  if (of.world_ranks != members) {
    for (const int member : members) names[of.world_ranks[member]] = member;
    of.p2p->name_ranks(group->channel(kPointToPoint), names);
  }
  const auto between = [&](const std::vector<int>& those, Channel which) {
    P2pGroup::Options p2p_group{
        .p2p = of.p2p,
        .ranks = group->in_world(those),
        .position = static_cast<int>(std::find(those.begin(), those.end(), of.rank) - those.begin()),
        .names = names.empty() ? std::vector<int>() : those,
        .channel = group->channel(which)};
    if (of.small_bytes != 0) p2p_group.small_bytes = of.small_bytes;
    if (of.segment_bytes != 0) p2p_group.segment_bytes = of.segment_bytes;
    return std::make_unique<P2pGroup>(std::move(p2p_group));
  };
  group->all_ = between(members, kAll);
  if (group->layered() && group->leads()) group->between_leaders_ = between(group->layout_.leaders, kLeaders);
  return group;
}

std::vector<int> CpuGroup::in_world(const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (int member : members) ranks.push_back(options_.world_ranks[member]);
  return ranks;
}

absl::Status CpuGroup::over_hosts(absl::Status status) {
  if (!status.ok() && !absl::IsInvalidArgument(status)) abort(std::string(status.message()));
  return status;
}

absl::Status CpuGroup::barrier(absl::Time deadline) {
  if (one_host()) return layout_.host->barrier(deadline);
  return over_hosts(all_->barrier(deadline));
}

absl::Status CpuGroup::broadcast(Span data, int root, absl::Time deadline) {
  if (one_host()) return layout_.host->broadcast(data, root, deadline);
  if (!layered()) return over_hosts(all_->broadcast(data, root, deadline));
  return over_hosts([&]() -> absl::Status {
    // 1. On the root's host: broadcast from the root, so that the leader has the data.
    // 2. Between the leaders: broadcast from the leader of that host.
    // 3. On the other hosts: broadcast from the leader, which is member 0 of its HostGroup.
    const bool from_here = layout_.leader_of[root] == layout_.leader_of[options_.rank];
    const auto neighbour = [&](int member) {
      return static_cast<int>(std::find(layout_.neighbours.begin(), layout_.neighbours.end(), member) -
                              layout_.neighbours.begin());
    };
    if (from_here && layout_.host != nullptr)
      GRADWIRE_RETURN_IF_ERROR(layout_.host->broadcast(data, neighbour(root), deadline));
    if (leads()) {
      const auto leader = std::find(layout_.leaders.begin(), layout_.leaders.end(), layout_.leader_of[root]) -
                          layout_.leaders.begin();
      GRADWIRE_RETURN_IF_ERROR(between_leaders_->broadcast(data, static_cast<int>(leader), deadline));
    }
    return from_here || layout_.host == nullptr ? absl::OkStatus()
                                                : layout_.host->broadcast(data, 0, deadline);
  }());
}

absl::Status CpuGroup::reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) {
  if (one_host()) return layout_.host->reduce(data, root, reducer, deadline);
  return over_hosts(all_->reduce(data, root, reducer, deadline));
}

absl::Status CpuGroup::all_reduce(Span data, const Reducer& reducer, absl::Time deadline) {
  if (one_host()) return layout_.host->all_reduce(data, reducer, deadline);
  if (!layered()) return over_hosts(all_->all_reduce(data, reducer, deadline));
  return over_hosts([&]() -> absl::Status {
    if (layout_.host != nullptr) GRADWIRE_RETURN_IF_ERROR(layout_.host->reduce(data, 0, reducer, deadline));
    if (leads()) GRADWIRE_RETURN_IF_ERROR(between_leaders_->all_reduce(data, reducer, deadline));
    return layout_.host == nullptr ? absl::OkStatus() : layout_.host->broadcast(data, 0, deadline);
  }());
}

absl::Status CpuGroup::gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) {
  if (one_host()) return layout_.host->gather(data, outputs, root, deadline);
  return over_hosts(all_->gather(data, outputs, root, deadline));
}

absl::Status CpuGroup::all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) {
  if (one_host()) return layout_.host->all_gather(data, outputs, deadline);
  return over_hosts(all_->all_gather(data, outputs, deadline));
}

absl::Status CpuGroup::scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) {
  if (one_host()) return layout_.host->scatter(data, inputs, root, deadline);
  return over_hosts(all_->scatter(data, inputs, root, deadline));
}

absl::Status CpuGroup::reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                                      absl::Time deadline) {
  if (one_host()) return layout_.host->reduce_scatter(output, inputs, reducer, deadline);
  return over_hosts(all_->reduce_scatter(output, inputs, reducer, deadline));
}

absl::Status CpuGroup::all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                  absl::Time deadline) {
  if (one_host()) return layout_.host->all_to_all(outputs, inputs, deadline);
  return over_hosts(all_->all_to_all(outputs, inputs, deadline));
}

Future<void> CpuGroup::send(int dst, int64_t tag, Span data, absl::Time deadline) {
  if (layout_.shm_p2p != nullptr) return layout_.shm_p2p->send(dst, tag, data, deadline);
  return options_.p2p->send(options_.world_ranks[dst], channel(kPointToPoint), tag, data, deadline);
}

Future<int> CpuGroup::receive(int src, int64_t tag, Span data, absl::Time deadline) {
  if (layout_.shm_p2p != nullptr) return layout_.shm_p2p->receive(src, tag, data, deadline);
  const int world_src = src == kAnyRank ? kAnyRank : options_.world_ranks[src];
  Future<int> received = options_.p2p->receive(world_src, channel(kPointToPoint), tag, data, deadline);
  // WorldP2p reports a rank of the world, but the caller expects a rank of the group. So the caller gets a
  // future of its own, and a cancellation of it is forwarded.
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
  if (layout_.shm_p2p == nullptr) return std::nullopt;
  return layout_.shm_p2p->try_send(dst, tag, data);
}

std::optional<absl::StatusOr<int>> CpuGroup::try_receive(int src, int64_t tag, Span data) {
  if (layout_.shm_p2p == nullptr) return std::nullopt;
  return layout_.shm_p2p->try_receive(src, tag, data);
}

// Called by any thread, also while an operation runs. Each part ends its own operations; the running
// operation waits in one of them.
void CpuGroup::abort(const std::string& reason) {
  if (layout_.host != nullptr) layout_.host->abort(reason);
  if (layout_.shm_p2p != nullptr) layout_.shm_p2p->abort(absl::AbortedError(reason));
  options_.p2p->abort(channel(kPointToPoint), absl::AbortedError(reason));
  all_->abort(reason);
  if (between_leaders_ != nullptr) between_leaders_->abort(reason);
}

}  // namespace gradwire::collectives::cpu
