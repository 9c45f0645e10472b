#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/init/init_internal.h"

namespace gradwire::store {

absl::StatusOr<Rendezvous> init_file(const InitRequest& request) {
  // World size 0, whatever the group's: whoever finds nobody else at the file begins afresh. That is right
  // here because no member leaves before all have joined, so an abandoned file is always an earlier job's.
  absl::StatusOr<std::shared_ptr<FileStore>> store =
      FileStore::open(request.url.path, /*world_size=*/0, request.left());
  if (absl::IsNotFound(store.status())) {
    return absl::NotFoundError(absl::StrCat(store.status().message(), "; its directory must exist"));
  }
  if (!store.ok()) return store.status();
  InitRequest joining = request;
  joining.store_is_forgotten = true;
  return join_group(*std::move(store), joining);
}

}  // namespace gradwire::store
