#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// The files on which the security of a process rests: the token, the certificates, their key, and the policy.
// All are read here, by one rule about the users who may read or change them.
struct FileKind {
  // The other users' rights.
  enum class Rule : uint8_t {
    // Nobody else may change it: that user would decide whom this process trusts.
    kTrusted,
    // Nobody else may read or change it.
    kSecret,
  };

  // Names the kind in messages, for example "token file".
  absl::string_view what;
  // The option that names the file, for the remedy if there is no such file.
  absl::string_view option;
  Rule rule = Rule::kSecret;
  // The maximum size, in bytes.
  std::size_t most = 0;
};

// Identifies one content of a file: a rewritten or replaced file has another stamp.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  absl::Time modified;
  // Also changes with the owner and the permissions. A file that is renamed back keeps its other times.
  absl::Time changed;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// The stamp of the file at `path`, behind symbolic links; a default one if it cannot be examined.
FileStamp stamp_of(const std::string& path);

struct CheckedFile {
  Secret content;
  FileStamp stamp;
};

// Reads a regular file of at most `kind.most` bytes. It is checked after it was opened, so nobody can
// exchange it in between. Symbolic links are followed, because Kubernetes mounts secrets as such. The file
// must belong to this process's user or to root, and
//
//   - by kTrusted, neither its group nor others may write it;
//   - by kSecret, its group and others have no rights, with one exception: a file of root may be readable by
//     a group of this process. Kubernetes makes such files for pods with an fsGroup (mode 0440).
//
// Errors name the file, its mode and owner, and the command that mends them: NotFound or Unavailable if it
// cannot be opened; PermissionDenied if this process may not read it, or another user may do too much;
// InvalidArgument if it is too large, or not a regular file.
absl::StatusOr<CheckedFile> read_checked_file(const FileKind& kind, const std::string& path);

// A user and its groups.
struct ProcessUser {
  uid_t user = 0;
  std::vector<gid_t> groups;

  // The effective user and all groups of this process.
  static ProcessUser current();
};

// The rule about owner and mode above, for a process of this user.
absl::Status check_rights(const FileKind& kind, const std::string& path, const struct stat& file,
                          const ProcessUser& user);

// Reads `most` + 1 bytes at most from the offset 0 of a descriptor, whose own offset stays. Unavailable if it
// cannot be read.
absl::StatusOr<Secret> read_from_start(int descriptor, std::size_t most);

}  // namespace gradwire::security
