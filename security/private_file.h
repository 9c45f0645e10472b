#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// Reads a file with a secret that other users of this host must not know or choose. The file is checked after
// it was opened, so nobody can exchange it in between, and symbolic links are followed, because Kubernetes
// mounts secrets as such. It must be
//   - a regular file of at most `most` bytes,
//   - owned by this process's user and closed to all others (mode 0600 or 0400), or owned by root, which may
//     let one group read it (0640 or 0440), as Kubernetes does for pods whose processes are not root.
// `what` names the kind of file in messages, for example "token file".
//
// NotFound, PermissionDenied or Unavailable if it cannot be opened or read; FailedPrecondition with the
// remedy if others could read or change it; InvalidArgument if it is too large or not a regular file.
absl::StatusOr<Secret> read_private_file(absl::string_view what, const std::string& path, std::size_t most);

// The rule about owner and mode above, for a process of this user.
absl::Status check_private(absl::string_view what, const std::string& path, const struct stat& status,
                           uid_t user);

// Creates a file with mode 0600 and this content. AlreadyExists if there is a file, or a link, with this
// name; Unavailable for other failures, after which there is no such file.
absl::Status create_private_file(absl::string_view what, const std::string& path, const Secret& content);

// Reads `most` + 1 bytes at most from the offset 0 of a descriptor, whose own offset stays. Unavailable if it
// cannot be read.
absl::StatusOr<Secret> read_from_start(int descriptor, std::size_t most);

}  // namespace gradwire::security
