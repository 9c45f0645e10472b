#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/formation/group_formation.h"
#include "gradwire/store/init/init_internal.h"
#include "gradwire/store/interface/limits.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::store {
namespace {

// Whether the store ends with this process.
bool is_hosted_here(const Store& store) {
  const auto* tcp = dynamic_cast<const TcpStore*>(&store);
  return tcp != nullptr && tcp->is_master();
}

}  // namespace

absl::Duration InitRequest::left() const { return deadline - Clock::system().now(); }

absl::Status check_rank(const InitRequest& request) {
  if (request.world_size == kUnknownWorldSize) {
    return absl::InvalidArgumentError("the world size is missing (0 for an open group)");
  }
  if (request.world_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size must not be negative, got ", request.world_size));
  }
  if (request.world_size > static_cast<int>(kMaxKeysPerWait)) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", request.world_size, " is over the limit of ", kMaxKeysPerWait));
  }
  if (request.rank < kUnknownRank || (request.world_size > 0 && request.rank >= request.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank out of range: got ", request.rank, ", world size is ", request.world_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<Rendezvous> join_group(std::shared_ptr<Store> store, const InitRequest& request) {
  std::string group = request.options.group_name;
  if (!request.attempt.empty()) absl::StrAppend(&group, "/attempt/", request.attempt);
  auto formation_store = std::make_shared<PrefixStore>(absl::StrCat("rendezvous/", group), store);
  GRADWIRE_ASSIGN_OR_RETURN(
      const GroupMembership membership,
      form_group(*formation_store, {.rank = request.rank,
                                    .world_size = request.world_size,
                                    .deadline = request.deadline,
                                    .may_end_store = request.store_ends_when_unused || is_hosted_here(*store),
                                    .again = request.options.again}));
  auto group_store =
      std::make_shared<PrefixStore>(absl::StrCat("group/", group, "/", membership.number), std::move(store));
  group_store->set_timeout(request.options.timeout);
  // Give the rank back only when the last user of the group's store has released it: the process may then
  // join again.
  auto leave = [group_store, formation_store = std::move(formation_store), membership,
                process = ::getpid()](Store*) mutable {
    // A forked child has a copy of this object, but does not own the membership.
    if (::getpid() == process) leave_group(*formation_store, membership);
    formation_store.reset();
    group_store.reset();
  };
  return Rendezvous{.store = std::shared_ptr<Store>(group_store.get(), std::move(leave)),
                    .rank = membership.rank,
                    .world_size = request.world_size};
}

}  // namespace gradwire::store
