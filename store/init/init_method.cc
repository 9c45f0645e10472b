#include "gradwire/store/init/init_method.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/name.h"
#include "gradwire/store/init/init_internal.h"

namespace gradwire::store {
namespace {

absl::Status check_group(const RendezvousOptions& options) {
  if (options.group_name.empty()) return absl::OkStatus();
  return check_name("group name", options.group_name, kMaxGroupName);
}

absl::StatusOr<Rendezvous> run(const InitRequest& request) {
  GRADWIRE_RETURN_IF_ERROR(check_group(request.options));
  if (request.url.kind == InitUrl::Kind::kEnv) return init_env(request);
  GRADWIRE_RETURN_IF_ERROR(check_rank(request));
  switch (request.url.kind) {
    case InitUrl::Kind::kTcp:
      return init_tcp(request);
    case InitUrl::Kind::kMulticast:
      return init_multicast(request);
    default:
      return init_file(request);
  }
}

}  // namespace

absl::StatusOr<Rendezvous> rendezvous(absl::string_view init_method, int rank, int world_size,
                                      const RendezvousOptions& options) {
  InitRequest request;
  GRADWIRE_ASSIGN_OR_RETURN(request.url, parse_init_url(init_method));
  request.rank = rank != kUnknownRank ? rank : request.url.rank.value_or(kUnknownRank);
  request.world_size =
      world_size != kUnknownWorldSize ? world_size : request.url.world_size.value_or(kUnknownWorldSize);
  request.options = options;
  request.deadline = Clock::system().now() + options.timeout;
  absl::StatusOr<Rendezvous> result = run(request);
  if (!result.ok()) return with_context(result.status(), absl::StrCat("rendezvous at ", init_method));
  log(LogLevel::kInfo, "rendezvous at ", init_method, ": rank ", result->rank, ", world size ",
      result->world_size);
  return result;
}

absl::StatusOr<Rendezvous> rendezvous(std::shared_ptr<Store> store, int rank, int world_size,
                                      const RendezvousOptions& options) {
  InitRequest request;
  request.rank = rank;
  request.world_size = world_size;
  request.options = options;
  request.deadline = Clock::system().now() + options.timeout;
  GRADWIRE_RETURN_IF_ERROR(check_group(options));
  GRADWIRE_RETURN_IF_ERROR(check_rank(request));
  const std::string where = store->description();
  absl::StatusOr<Rendezvous> result = join_group(std::move(store), request);
  if (!result.ok()) return with_context(result.status(), absl::StrCat("rendezvous in the ", where));
  log(LogLevel::kInfo, "rendezvous in the ", where, ": rank ", result->rank, ", world size ",
      result->world_size);
  return result;
}

}  // namespace gradwire::store
