#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::security {

// Identifies one content of a file: a rewritten or replaced file has another stamp.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  int64_t modified = 0;  // nanoseconds
  int64_t changed = 0;   // nanoseconds; a file that is renamed back keeps its other times

  bool operator==(const FileStamp&) const = default;
};

// The stamp of the file at `path`, behind symbolic links. A stamp of zeros if it cannot be read.
FileStamp stamp_of(const std::string& path);

struct FileContent {
  std::string bytes;
  FileStamp stamp;
};

// Whether only the owner may read a file.
enum class Secrecy : uint8_t { kPublic, kSecret };

// Reads a regular file of at most 1 MiB. `what` names it in messages, for example "key". A secret file that
// its group or others may read or write, or that belongs neither to this process's user nor to root, is
// refused. The opened file is checked, not the symbolic links that lead to it. Errors: NotFound;
// PermissionDenied; InvalidArgument.
absl::StatusOr<FileContent> read_file(const std::string& what, const std::string& path, Secrecy secrecy);

}  // namespace gradwire::security
