#include "gradwire/security/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/io/write.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::security {
namespace {

absl::Status open_error(int error, const std::string& message) {
  const absl::Status status = system_status(message, error);
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

absl::Status write_content(int descriptor, absl::string_view content) {
  if (!write_all(descriptor, content)) return system_status("write", errno);
  return ::fsync(descriptor) == 0 ? absl::OkStatus() : system_status("fsync", errno);
}

}  // namespace

absl::Status create_private_file(absl::string_view what, const std::string& path, const Secret& content) {
  const std::string name = absl::StrCat("the ", what, " ", path);
  // With O_EXCL a symbolic link is not followed.
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return open_error(errno, absl::StrCat("cannot create ", name));
  // The process's umask may have taken rights of the owner too.
  absl::Status status = ::fchmod(file.get(), 0600) == 0 ? absl::OkStatus() : errno_status("chmod", errno);
  if (status.ok()) status = write_content(file.get(), content.reveal());
  if (status.ok()) return status;
  ::unlink(path.c_str());
  return with_context(status, absl::StrCat("cannot create ", name));
}

}  // namespace gradwire::security
