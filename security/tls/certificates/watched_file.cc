#include "gradwire/security/tls/certificates/watched_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::security {
namespace {

constexpr off_t kMaxBytes = off_t{1} << 20;

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileStamp stamp_of(const struct stat& file) {
  return {.device = file.st_dev,
          .inode = file.st_ino,
          .size = file.st_size,
          .modified = nanoseconds(file.st_mtim),
          .changed = nanoseconds(file.st_ctim)};
}

absl::Status check_secret(const std::string& name, const std::string& path, const struct stat& file) {
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s belongs to the user %d, expected this process's user %d or root; run: chown %d %s", name,
        file.st_uid, ::geteuid(), ::geteuid(), path));
  }
  if ((file.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s may be used by others: got mode %04o, expected 0600 or 0400; run: chmod 600 %s",
                        name, file.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

}  // namespace

FileStamp stamp_of(const std::string& path) {
  struct stat file {};
  return ::stat(path.c_str(), &file) == 0 ? stamp_of(file) : FileStamp();
}

absl::StatusOr<FileContent> read_file(const std::string& what, const std::string& path, Secrecy secrecy) {
  const std::string name = absl::StrCat("the ", what, " file ", path);
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid()) {
    const int error = errno;
    return absl::ErrnoToStatus(error,
                               absl::StrCat(name, " cannot be opened; check the path and its permissions"));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat(name, " cannot be read"));
  if (!S_ISREG(status.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a regular file"));
  if (status.st_size > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is too large: got ", status.st_size, " bytes, expected at most ", kMaxBytes));
  }
  if (secrecy == Secrecy::kSecret) {
    if (const absl::Status secret = check_secret(name, path, status); !secret.ok()) return secret;
  }
  FileContent content{.bytes = std::string(static_cast<size_t>(status.st_size), '\0'),
                      .stamp = stamp_of(status)};
  size_t size = 0;
  while (size < content.bytes.size()) {
    const ssize_t count = ::read(file.get(), content.bytes.data() + size, content.bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, " cannot be read"));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  // A file that was cut short meanwhile has another stamp now, and is read again later.
  content.bytes.resize(size);
  return content;
}

}  // namespace gradwire::security
