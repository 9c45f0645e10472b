#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/error.h"
#include "base/random_id.h"
#include "store/init_internal.h"
#include "store/prefix_store.h"

namespace gradwire::store {
namespace {

// Keys of the rendezvous itself, apart from the group's.
constexpr char kWorldSizeKey[] = "world_size";
constexpr char kNextRankKey[] = "next_rank";

// For giving a rank back when a group ends; a store that is gone by then needs none.
constexpr absl::Duration kGiveBackTime = absl::Seconds(1);

std::string rank_key(int rank) { return absl::StrCat("rank/", rank); }

std::string here_key(int64_t generation, int rank) { return absl::StrCat("rank/", rank, "/in/", generation); }

// How often this rank has joined before: the same number for all members of a group that forms again in a
// store that outlives it, so that its keys are not those of its predecessor.
absl::StatusOr<int64_t> generation_of(Store& book, int rank, const InitRequest& request) {
  if (!request.store_outlives_group || request.world_size == 0) return 0;
  GRADWIRE_ASSIGN_OR_RETURN(const int64_t joined,
                            book.try_add(absl::StrCat("joined/", rank), 1, request.left()));
  return joined - 1;
}

absl::Status agree_on_world_size(Store& book, const InitRequest& request) {
  const std::string mine = absl::StrCat(request.world_size);
  GRADWIRE_ASSIGN_OR_RETURN(const std::string agreed,
                            book.try_compare_set(kWorldSizeKey, "", mine, request.left()));
  if (agreed == mine) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("this process says that the world size is ", mine,
                                                 ", another one of the group said ", agreed, ", in the ",
                                                 book.description()));
}

absl::StatusOr<int> take_rank(Store& book, const InitRequest& request) {
  int rank = request.rank;
  if (rank == kUnknownRank) {
    GRADWIRE_ASSIGN_OR_RETURN(const int64_t arrived, book.try_add(kNextRankKey, 1, request.left()));
    rank = static_cast<int>(arrived - 1);
    if (request.world_size > 0 && rank >= request.world_size) {
      return absl::FailedPreconditionError(absl::StrCat("the group is full: its world size is ",
                                                        request.world_size, " and this is process number ",
                                                        arrived, " to join the ", book.description()));
    }
  }
  // Members of an open group may leave and come back, so that there a rank is nobody's for good.
  if (request.world_size == 0) return rank;
  const std::string claim = absl::StrCat(random_id());
  GRADWIRE_ASSIGN_OR_RETURN(const std::string holder,
                            book.try_compare_set(rank_key(rank), "", claim, request.left()));
  if (holder == claim) return rank;
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank, " of ", request.world_size, " has been taken by another process, in the ",
      book.description(), request.rank == kUnknownRank ? "; give all processes their ranks, or none" : ""));
}

}  // namespace

std::string own_host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

absl::Duration InitRequest::left() const { return deadline - Clock::system().now(); }

absl::Status check_rank(const InitRequest& request) {
  if (request.world_size == kUnknownWorldSize) {
    return absl::InvalidArgumentError("the world size is missing (0 for an open group)");
  }
  if (request.world_size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a world size of ", request.world_size, " is negative"));
  }
  if (request.rank < kUnknownRank || (request.world_size > 0 && request.rank >= request.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", request.rank, " is not one of a world size of ", request.world_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<Rendezvous> join_group(std::shared_ptr<Store> store, const InitRequest& request) {
  // Names are separated from what follows by a slash, so none may hold one.
  std::string group = absl::StrReplaceAll(request.options.group_name, {{"%", "%25"}, {"/", "%2F"}});
  if (!request.attempt.empty()) absl::StrAppend(&group, "/attempt/", request.attempt);
  PrefixStore book(absl::StrCat("rendezvous/", group), store);
  GRADWIRE_RETURN_IF_ERROR(agree_on_world_size(book, request));
  GRADWIRE_ASSIGN_OR_RETURN(const int rank, take_rank(book, request));
  GRADWIRE_ASSIGN_OR_RETURN(const int64_t generation, generation_of(book, rank, request));
  std::vector<std::string> all;
  for (int r = 0; r < request.world_size; ++r) all.push_back(here_key(generation, r));
  GRADWIRE_RETURN_IF_ERROR(book.try_set(here_key(generation, rank), "", request.left()));
  if (absl::Status status = book.try_wait(all, request.left()); !status.ok()) {
    return with_context(
        status, absl::StrCat("not all of ", request.world_size, " ranks came (this is rank ", rank, ")"));
  }
  auto own = std::make_shared<PrefixStore>(absl::StrCat("group/", group, "/", generation), store);
  own->set_timeout(request.options.timeout);
  Rendezvous found{.store = own, .rank = rank, .world_size = request.world_size};
  if (request.store_outlives_group) {
    // The process may join again: its rank is free when nothing of it is left in this group.
    auto give_back = [own, store = std::move(store), group, rank](Store*) mutable {
      PrefixStore rendezvous(absl::StrCat("rendezvous/", group), store);
      (void)rendezvous.try_delete_key(rank_key(rank), kGiveBackTime);
      own.reset();
    };
    found.store = std::shared_ptr<Store>(own.get(), std::move(give_back));
  }
  return found;
}

}  // namespace gradwire::store
