#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::store {

// The file behind a FileStore: a header, records that are only ever appended, and two locks.
//
// Format. The file begins with the 16 bytes of kFileMagic. A record is a 16-byte header (length of the body
// and a checksum of the body, 8 bytes each, little-endian) and the body. A process that dies while it appends
// leaves a torn record at the very end: its length reaches past the end of the file, or its checksum is
// wrong. The next writer, or the next reader that waits, cuts it off. Such a record before the end is damage.
// Nothing is synced to the disk: a host that crashes or loses power may lose written records, or leave
// damage.
//
// The locks are open-file-description locks of fcntl. They exclude other processes as well as other FileLogs
// of this process, and the system releases them when the holder dies. The data lock is held during one
// operation. The presence lock, on another byte, is held (shared) for as long as the log is open, so that a
// FileLog can find out whether it is the last one.
//
// Not thread-safe. A forked child must open a FileLog of its own, because parent and child share the open
// file description with its locks.
class FileLog {
 public:
  FileLog() = default;
  ~FileLog();
  FileLog(const FileLog&) = delete;
  FileLog& operator=(const FileLog&) = delete;

  // Opens or creates `path` and takes the presence lock and the data lock, which is still held on return.
  // A new file is readable and writable for its owner alone. NotFound: the directory does not exist.
  // InvalidArgument: not a regular file, or not a file of a FileStore. PermissionDenied, also for a file of
  // another user in a folder like /tmp. DeadlineExceeded: another process did not release the lock.
  absl::Status open(const std::string& path, Clock& clock, absl::Time deadline);

  // Takes the data lock. Waits at least one second. DeadlineExceeded if another FileLog holds it until
  // `deadline`; Unavailable if the file has been removed or replaced.
  absl::Status lock(bool exclusive, Clock& clock, absl::Time deadline);
  void unlock();

  // Returns the bodies of the records appended since the last read, in order. Requires the data lock.
  // InvalidArgument if the file is damaged.
  absl::StatusOr<std::vector<std::string>> read();
  // Appends a record. Requires the exclusive data lock, and that all records have been read.
  // ResourceExhausted: the disk is full or the file is at its limit. On failure the log is unchanged.
  absl::Status append(absl::string_view body);
  // Whether the file has changed since the last read. Checked without a lock.
  bool has_changes() const;
  // Whether a writer that died has left a torn record at the end. Requires the data lock (shared or
  // exclusive), and that read() was called under it.
  bool has_torn_tail() const;
  // Removes the torn record. Requires the exclusive data lock, and that all whole records have been read.
  absl::Status cut_off_tail();

  // Whether no other FileLog has this file open. Requires the exclusive data lock.
  bool is_alone();
  // Removes all records, or the file itself. Both require the exclusive data lock.
  absl::Status clear();
  void remove();

 private:
  absl::Status open_once(const std::string& path, Clock& clock, absl::Time deadline);
  absl::Status check_owner(const struct stat& file) const;
  absl::Status check_header();
  absl::Status error(absl::StatusCode code, absl::string_view what) const;
  // The error of a system call.
  absl::Status os_error(absl::string_view what, int error_number) const;
  void close();

  std::string path_;
  Descriptor fd_;
  off_t offset_ = 0;  // End of the last record that was read.
};

}  // namespace gradwire::store
