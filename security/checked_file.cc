#include "gradwire/security/checked_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::security {
namespace {

constexpr mode_t kAllOthers = S_IRWXG | S_IRWXO;
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

std::string named(const FileKind& kind, const std::string& path) {
  return absl::StrCat("the ", kind.what, " ", path);
}

// The path as a shell reads it, for commands that the user copies.
std::string quoted(const std::string& path) {
  const bool plain = std::all_of(path.begin(), path.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::strchr("/._-+:@%,=", c) != nullptr;
  });
  return plain ? path : absl::StrCat("'", absl::StrReplaceAll(path, {{"'", "'\\''"}}), "'");
}

std::string rights(const struct stat& file) {
  return absl::StrFormat("mode %04o and belongs to user %d and group %d", file.st_mode & 07777, file.st_uid,
                         file.st_gid);
}

FileStamp stamp_of(const struct stat& file) {
  return {.device = file.st_dev,
          .inode = file.st_ino,
          .size = file.st_size,
          .modified = absl::TimeFromTimespec(file.st_mtim),
          .changed = absl::TimeFromTimespec(file.st_ctim)};
}

// The folder on the way to the file that this process may not enter: the last one that can be examined.
std::string closed_folder(const std::string& path) {
  std::string last = ".";
  for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    struct stat status = {};
    if (folder.empty()) continue;
    if (::stat(folder.c_str(), &status) != 0) break;
    last = folder;
  }
  return last;
}

// Why a file cannot be opened.
absl::Status open_error(const FileKind& kind, const std::string& path, int error) {
  const std::string text = absl::StrCat("cannot open ", named(kind, path), ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR)
    return absl::NotFoundError(absl::StrCat(text, "; create it, or correct ", kind.option));
  if (error != EACCES && error != EPERM)
    return system_status(absl::StrCat("cannot open ", named(kind, path)), error);
  struct stat file = {};
  const uid_t user = ::geteuid();
  if (::stat(path.c_str(), &file) != 0) {
    const std::string folder = quoted(closed_folder(path));
    return absl::PermissionDeniedError(absl::StrCat(text, "; user ", user,
                                                    " (of this process) may not enter the folder ", folder,
                                                    "; run as its owner: chmod o+x ", folder));
  }
  return absl::PermissionDeniedError(absl::StrCat(text, "; it has ", rights(file),
                                                  ", but this process runs as user ", user,
                                                  "; run as root: chown ", user, " ", quoted(path)));
}

}  // namespace

FileStamp stamp_of(const std::string& path) {
  assert(!on_duty());
  struct stat file = {};
  return ::stat(path.c_str(), &file) == 0 ? stamp_of(file) : FileStamp();
}

ProcessUser ProcessUser::current() {
  ProcessUser current{.user = ::geteuid(), .groups = {}};
  const int count = ::getgroups(0, nullptr);
  if (count > 0) {
    current.groups.resize(static_cast<std::size_t>(count));
    const int got = ::getgroups(count, current.groups.data());
    current.groups.resize(static_cast<std::size_t>(std::max(got, 0)));
  }
  current.groups.push_back(::getegid());
  return current;
}

absl::Status check_rights(const FileKind& kind, const std::string& path, const struct stat& file,
                          const ProcessUser& user) {
  const bool trusted = kind.rule == FileKind::Rule::kTrusted;
  const std::string file_name = quoted(path);
  if (file.st_uid != user.user && file.st_uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(named(kind, path), " belongs to another user: it has ", rights(file), ", expected user ",
                     user.user, " (of this process) or root; run as root: chown ", user.user, " ", file_name,
                     trusted ? "" : absl::StrCat(" && chmod 600 ", file_name)));
  }
  const bool group_may_read =
      file.st_uid == 0 && std::count(user.groups.begin(), user.groups.end(), file.st_gid) > 0;
  const mode_t forbidden = trusted          ? kOthersWrite
                           : group_may_read ? kAllOthers & ~static_cast<mode_t>(S_IRGRP)
                                            : kAllOthers;
  const mode_t excess = file.st_mode & forbidden;
  if (excess == 0) return absl::OkStatus();
  // The command leaves the file readable by this process.
  const bool of_other = file.st_uid != user.user;
  const std::string command =
      trusted          ? absl::StrCat("chmod go-w ", file_name)
      : !of_other      ? absl::StrCat("chmod 600 ", file_name)
      : group_may_read ? absl::StrCat("chmod 440 ", file_name)
                       : absl::StrCat("chown ", user.user, " ", file_name, " && chmod 600 ", file_name);
  return absl::PermissionDeniedError(absl::StrCat(
      named(kind, path), " can be ", trusted ? "changed" : "read or changed", " by ",
      (excess & S_IRWXO) != 0 ? "all users" : "its group", ": it has ", rights(file), ", expected mode ",
      trusted                      ? "0644 or 0600"
      : of_other && group_may_read ? "0440 or 0400"
                                   : "0600 or 0400",
      "; run", of_other ? " as root" : "", ": ", command));
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

absl::StatusOr<CheckedFile> read_checked_file(const FileKind& kind, const std::string& path) {
  assert(!on_duty());
  const std::string name = named(kind, path);
  // O_NONBLOCK: a pipe without a writer would block open().
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid()) return open_error(kind, path, errno);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return errno_status(absl::StrCat("cannot examine ", name), errno);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not a regular file; give the path of a file in ", kind.option));
  }
  GRADWIRE_RETURN_IF_ERROR(check_rights(kind, path, status, ProcessUser::current()));
  absl::StatusOr<Secret> content = read_from_start(file.get(), kind.most);
  if (!content.ok()) return with_context(content.status(), absl::StrCat("cannot read ", name));
  if (content->size() > kind.most) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is too large: got more than ", kind.most,
                                                   " bytes; give the path of the right file in ",
                                                   kind.option));
  }
  // A file that was changed while it was read has another stamp now, and is read again later.
  return CheckedFile{*std::move(content), stamp_of(status)};
}

}  // namespace gradwire::security
