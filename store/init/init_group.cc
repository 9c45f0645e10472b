#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/formation/group_formation.h"
#include "gradwire/store/init/init_internal.h"
#include "gradwire/store/memory/limits.h"
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
    return absl::InvalidArgumentError(absl::StrCat("a world size of ", request.world_size, " is negative"));
  }
  if (request.world_size > static_cast<int>(kMaxKeysPerWait)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a world size of ", request.world_size, " is over the limit of ", kMaxKeysPerWait));
  }
  if (request.rank < kUnknownRank || (request.world_size > 0 && request.rank >= request.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", request.rank, " is not one of a world size of ", request.world_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<Rendezvous> join_group(std::shared_ptr<Store> store, const InitRequest& request) {
  std::string group = request.options.group_name;
  if (!request.attempt.empty()) absl::StrAppend(&group, "/attempt/", request.attempt);
  auto book = std::make_shared<PrefixStore>(absl::StrCat("rendezvous/", group), store);
  GRADWIRE_ASSIGN_OR_RETURN(
      const Place place,
      form_group(*book, {.rank = request.rank,
                         .world_size = request.world_size,
                         .deadline = request.deadline,
                         .may_end_store = request.store_is_forgotten || is_hosted_here(*store),
                         .again = request.options.again}));
  auto own =
      std::make_shared<PrefixStore>(absl::StrCat("group/", group, "/", place.number), std::move(store));
  own->set_timeout(request.options.timeout);
  // The process may come again: its rank is free when nothing of it is left in this group.
  auto leave = [own, book = std::move(book), place, process = ::getpid()](Store*) mutable {
    // A child of the process has a copy.
    if (::getpid() == process) leave_place(*book, place);
    book.reset();
    own.reset();
  };
  return Rendezvous{.store = std::shared_ptr<Store>(own.get(), std::move(leave)),
                    .rank = place.rank,
                    .world_size = request.world_size};
}

}  // namespace gradwire::store
