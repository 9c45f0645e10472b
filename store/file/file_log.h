#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::store {

// The file behind a FileStore: a header and records that are only ever appended, and two locks on it.
//
// Format. The file begins with the 16 bytes of kFileMagic. A record is a 16-byte header (length of the body
// and a checksum of the body, 8 bytes each, little-endian) and the body. A process that dies while it appends
// leaves a record whose length reaches past the end of the file or whose checksum is wrong, at the very end:
// the next writer, or reader that waits, cuts it off. The same in the middle is damage. Nothing is synced to
// the disk: a host that crashes or loses power may lose records that were written, or leave damage.
//
// Locks are open-file-description locks of fcntl: they exclude other processes and other FileLogs of this
// process alike, and the system frees them when the holder dies. The data lock is held during one operation;
// the presence lock, on another byte, for as long as the log is open, so that the last one can tell that it
// is.
//
// Not thread-safe. A forked child must open its own: a description, with its locks, is shared across fork.
class FileLog {
 public:
  FileLog() = default;
  ~FileLog();
  FileLog(const FileLog&) = delete;
  FileLog& operator=(const FileLog&) = delete;

  // Opens or creates `path` and takes the presence lock; the data lock is held on return. NotFound: no such
  // directory. InvalidArgument: not a file, or one that is no store. PermissionDenied. DeadlineExceeded: the
  // lock.
  absl::Status open(const std::string& path, Clock& clock, absl::Time deadline);

  // DeadlineExceeded if another holds it until `deadline`; Unavailable if the file has been removed or
  // replaced.
  absl::Status lock(bool exclusive, Clock& clock, absl::Time deadline);
  void unlock();

  // The bodies of the records appended since the last read, in order. With the data lock. InvalidArgument:
  // damage.
  absl::StatusOr<std::vector<std::string>> read();
  // Adds a record; everything must have been read. With the exclusive data lock. ResourceExhausted: the disk
  // is full or the file at its limit; the log is as before.
  absl::Status append(absl::string_view body);
  // Whether the file has other contents than what was read; a look without the lock.
  bool has_news() const;
  // After read(), with either data lock: whether a writer that died left an incomplete record at the end.
  bool has_torn_tail() const;
  // With the exclusive data lock; everything must have been read.
  absl::Status cut_off_tail();

  // With the exclusive data lock: whether no other log has this file open.
  bool is_alone();
  // With the exclusive data lock: forgets all records, or removes the file.
  absl::Status clear();
  void remove();

 private:
  absl::Status open_once(const std::string& path, Clock& clock, absl::Time deadline);
  absl::Status check_header();
  absl::Status error(absl::StatusCode code, absl::string_view what) const;
  void close();

  std::string path_;
  int fd_ = -1;
  off_t offset_ = 0;  // Up to where records have been read.
};

}  // namespace gradwire::store
