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

// Users who may rename in the parent of a folder could exchange the folder after it was checked.
absl::Status check_parent(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  struct stat info {};
  // A parent that is missing is reported when the folder is opened.
  if (stat(parent.c_str(), &info) != 0) return absl::OkStatus();
  const bool trusted_owner = info.st_uid == geteuid() || info.st_uid == 0;
  const bool others_write = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (info.st_mode & S_ISVTX) == 0;
  if (trusted_owner && !others_write) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("other users could exchange the folder ", path,
                                                  ", because they may write to ", parent,
                                                  "; name another one in GRADWIRE_RUNTIME_DIR"));
}

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

// The folder is checked after it was opened. Nobody can exchange it in between, or later.
absl::StatusOr<Descriptor> open_private_folder(std::string path, bool create) {
  // A link with a slash behind it would be followed.
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  GRADWIRE_RETURN_IF_ERROR(check_parent(path));
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
