#include "gradwire/security/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::security {
namespace {

absl::Status open_error(int error, const std::string& message) {
  const absl::Status status = errno_status(message, error);
  if (error == ENOENT || error == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat(status.message(), "; make its folder first"));
  }
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(
        absl::StrCat(status.message(), "; choose a folder that user ", ::geteuid(), " may write"));
  }
  if (error == EEXIST) {
    return absl::AlreadyExistsError(
        absl::StrCat(status.message(), "; remove it first, or choose another name"));
  }
  return status;
}

absl::Status write_all(int descriptor, absl::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return errno_status("write", errno);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(descriptor) == 0 ? absl::OkStatus() : errno_status("fsync", errno);
}

}  // namespace

absl::Status create_private_file(absl::string_view what, const std::string& path, const Secret& content) {
  const std::string name = absl::StrCat("the ", what, " ", path);
  // With O_EXCL a symbolic link is not followed.
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return open_error(errno, absl::StrCat("cannot create ", name));
  // The process's umask may have taken rights of the owner too.
  absl::Status status = ::fchmod(file.get(), 0600) == 0 ? absl::OkStatus() : errno_status("chmod", errno);
  if (status.ok()) status = write_all(file.get(), content.reveal());
  if (status.ok()) return status;
  ::unlink(path.c_str());
  return with_context(status, absl::StrCat("cannot create ", name));
}

}  // namespace gradwire::security
