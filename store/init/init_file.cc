#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/init/init_internal.h"

namespace gradwire::store {

absl::StatusOr<Rendezvous> init_file(const InitRequest& request) {
  // Open with world size 0 for every group: a process that opens the file while no other has it open empties
  // it. That is safe here: no member closes the file before all have joined, so a file that no process has
  // open is always left over from an earlier job.
  absl::StatusOr<std::shared_ptr<FileStore>> store =
      FileStore::open(request.url.path, /*world_size=*/0, request.left());
  if (absl::IsNotFound(store.status())) {
    return absl::NotFoundError(absl::StrCat(store.status().message(), "; its directory must exist"));
  }
  if (!store.ok()) return store.status();
  InitRequest joining = request;
  joining.store_ends_when_unused = true;
  return join_group(*std::move(store), joining);
}

}  // namespace gradwire::store
