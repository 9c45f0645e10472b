#include "gradwire/security/private_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/error.h"

namespace gradwire::security {
namespace {

constexpr mode_t kAllOthers = S_IRWXG | S_IRWXO;
constexpr mode_t kAllButGroupReads = kAllOthers & ~static_cast<mode_t>(S_IRGRP);

std::string named(absl::string_view what, const std::string& path) {
  return absl::StrCat("the ", what, " \"", path, "\"");
}

absl::Status system_error(int error, const std::string& message) {
  const absl::Status status = errno_status(message, error);
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(status.message());
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(status.message());
  if (error == EEXIST) return absl::AlreadyExistsError(status.message());
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

absl::Status check_private(absl::string_view what, const std::string& path, const struct stat& status,
                           uid_t user) {
  if (status.st_uid != user && status.st_uid != 0) {
    return absl::FailedPreconditionError(absl::StrCat(named(what, path), " belongs to user ", status.st_uid,
                                                      ", expected user ", user, " or root; run: chown ", user,
                                                      " ", path));
  }
  const mode_t forbidden = status.st_uid == user ? kAllOthers : kAllButGroupReads;
  if ((status.st_mode & forbidden) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s can be read or changed by other users: got mode %04o, expected 0600; run: chmod 600 %s",
        named(what, path), status.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

absl::StatusOr<Secret> read_from_start(int descriptor, std::size_t most) {
  std::string content(most + 1, '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t got =
        ::pread(descriptor, content.data() + size, content.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      wipe(content);
      return errno_status("read", error);
    }
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  content.resize(size);
  return Secret::take(content);
}

absl::StatusOr<Secret> read_private_file(absl::string_view what, const std::string& path, std::size_t most) {
  const std::string name = named(what, path);
  // O_NONBLOCK: a pipe without a writer would block open().
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid()) return system_error(errno, absl::StrCat("cannot open ", name));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return errno_status(absl::StrCat("cannot examine ", name), errno);
  if (!S_ISREG(status.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a regular file"));
  GRADWIRE_RETURN_IF_ERROR(check_private(what, path, status, ::geteuid()));
  absl::StatusOr<Secret> content = read_from_start(file.get(), most);
  if (!content.ok()) return with_context(content.status(), absl::StrCat("cannot read ", name));
  if (content->size() > most) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has more than ", most, " bytes"));
  }
  return content;
}

absl::Status create_private_file(absl::string_view what, const std::string& path, const Secret& content) {
  const std::string name = named(what, path);
  // With O_EXCL a symbolic link is not followed.
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return system_error(errno, absl::StrCat("cannot create ", name));
  // The process's umask may have taken rights of the owner too.
  absl::Status status = ::fchmod(file.get(), 0600) == 0 ? absl::OkStatus() : errno_status("chmod", errno);
  if (status.ok()) status = write_all(file.get(), content.reveal());
  if (status.ok()) return status;
  ::unlink(path.c_str());
  return with_context(status, absl::StrCat("cannot create ", name));
}

}  // namespace gradwire::security
