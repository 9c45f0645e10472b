#include "gradwire/tools/running_jobs/runtime_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/error.h"

namespace gradwire::tools {
namespace {

constexpr mode_t kAllOthers = S_IRWXG | S_IRWXO;

}  // namespace

RuntimeFolders RuntimeFolders::of(const Variable& variable) {
  if (const std::optional<std::string> own = variable("GRADWIRE_RUNTIME_DIR")) {
    if (*own == "none") return {.chosen = true};
    return {.paths = {*own}, .chosen = true};
  }
  const std::string user = absl::StrCat(geteuid());
  std::string runtime = variable("XDG_RUNTIME_DIR").value_or("");
  // A relative path would mean another folder in each terminal.
  if (!absl::StartsWith(runtime, "/")) runtime = "/run/user/" + user;
  return {.paths = {runtime + "/gradwire", "/tmp/gradwire-" + user}};
}

// The folder is checked after it was opened. Nobody can exchange it in between.
absl::StatusOr<Descriptor> open_private_folder(const std::string& path, bool create) {
  if (create && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return errno_status(absl::StrCat("cannot make the folder ", path), errno);
  }
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid()) {
    const int error = errno;
    const absl::Status status = errno_status(absl::StrCat("cannot open the folder ", path), error);
    if (error == ENOENT) return absl::NotFoundError(status.message());
    return error == EACCES ? absl::PermissionDeniedError(status.message()) : status;
  }
  struct stat info {};
  if (fstat(folder.get(), &info) != 0)
    return errno_status(absl::StrCat("cannot examine the folder ", path), errno);
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the folder ", path, " belongs to user ", info.st_uid, ", expected user ", geteuid(),
                     " (of this process); remove it, or name another one in GRADWIRE_RUNTIME_DIR"));
  }
  if ((info.st_mode & kAllOthers) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("other users have rights in the folder %s: got mode %04o, expected 0700; run: chmod "
                        "700 %s",
                        path, info.st_mode & 07777, path));
  }
  return folder;
}

}  // namespace gradwire::tools
