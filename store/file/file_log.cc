#include "gradwire/store/file/file_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/file_size_limit.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
namespace {

constexpr char kFileMagic[] = "gradwire store 1";
constexpr std::size_t kMagicBytes = 16;
constexpr std::size_t kRecordHeaderBytes = 16;
// A record has a key and a value, or the keys and values of a multi_set with a length of at most 5 bytes for
// each, and the framing of the message.
constexpr uint64_t kMaxBodyBytes =
    std::max(kMaxValueBytes + kMaxKeyBytes, kMaxMultiBytes + 2 * 5 * kMaxKeysPerWait) + 256;

// Offsets of the bytes that are locked. They are far behind any record, so locking them locks no data.
constexpr off_t kDataLock = off_t{1} << 60;
constexpr off_t kPresenceLock = (off_t{1} << 60) + 1;

// An operation with a deadline that is near or has passed may still wait this long for the lock.
constexpr absl::Duration kMinLockTime = absl::Seconds(1);

void store_number(char* at, uint64_t value) {
  for (int i = 0; i < 8; ++i) at[i] = static_cast<char>(value >> (8 * i));
}

uint64_t load_number(const char* at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  return value;
}

// The checksum only has to distinguish a whole record from a torn one. No library that the project uses has a
// checksum whose value is guaranteed to be the same in every release.
uint64_t checksum(absl::string_view bytes) { return stable_hash(bytes); }

// Locks of an open file description, not of the process: they exclude other FileLogs of the same process
// too, and closing another descriptor of the file does not release them.
bool set_lock(int fd, off_t at, short type) {
  struct flock request = {};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  request.l_start = at;
  request.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &request) == 0;
}

bool read_all(int fd, char* into, std::size_t size, off_t at) {
  while (size > 0) {
    const ssize_t got = pread(fd, into, size, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    into += got;
    size -= static_cast<std::size_t>(got);
    at += got;
  }
  return true;
}

bool write_all(int fd, absl::string_view bytes, off_t at) {
  const NoFileSizeSignal no_signal;
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
    at += put;
  }
  return true;
}

absl::StatusCode code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EISDIR:
      return absl::StatusCode::kInvalidArgument;
    default:
      return is_shortage(error) ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable;
  }
}

}  // namespace

FileLog::~FileLog() { close(); }

void FileLog::close() {
  fd_.reset();  // Releases both locks.
  offset_ = 0;
}

absl::Status FileLog::error(absl::StatusCode code, absl::string_view what) const {
  return absl::Status(code, absl::StrCat("FileStore ", path_, ": ", what));
}

absl::Status FileLog::os_error(absl::string_view what, int error_number) const {
  return error(code_of(error_number), system_status(what, error_number).message());
}

absl::Status FileLog::open(const std::string& path, Clock& clock, absl::Time deadline) {
  // Retry: the last user of an existing file may remove it between this process's open and its lock. The next
  // attempt then creates a new file.
  while (true) {
    absl::Status status = open_once(path, clock, deadline);
    if (!absl::IsUnavailable(status) || clock.now() >= deadline) return status;
  }
}

// The steps of opening a file that other processes may create, replace or remove at the same time:
// 1. Open or create it. O_NOFOLLOW and O_NONBLOCK: a link or a pipe that another user put at this path must
//    not be followed, nor block this process.
// 2. Take the data lock. lock() then checks that the path still leads to this file.
// 3. Check the header, or write it into a new file. No other process sees the file half-initialised,
//    because it would need the lock.
// 4. Take the presence lock for as long as the log is open.
absl::Status FileLog::open_once(const std::string& path, Clock& clock, absl::Time deadline) {
  close();
  path_ = path;
  fd_ = Descriptor::from(
      [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600); });
  if (!fd_.valid()) {
    const int why = errno;
    constexpr absl::string_view kWhat = "cannot open or create the file";
    if (why == ENXIO || why == ELOOP)
      return error(absl::StatusCode::kInvalidArgument, absl::StrCat(kWhat, ": ", std::strerror(why)));
    return os_error(kWhat, why);
  }
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return error(absl::StatusCode::kInvalidArgument, "the path is not a regular file; choose another path");
  }
  GRADWIRE_RETURN_IF_ERROR(check_owner(status));
  GRADWIRE_RETURN_IF_ERROR(lock(/*exclusive=*/true, clock, deadline));
  GRADWIRE_RETURN_IF_ERROR(check_header());
  // Always succeeds: only is_alone() takes this lock exclusively, and releases it again while it holds the
  // data lock.
  if (!set_lock(fd_.get(), kPresenceLock, F_RDLCK)) {
    return error(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat("cannot lock the file: ", std::strerror(errno),
                              "; use a file system that supports locks"));
  }
  return absl::OkStatus();
}

// In a folder like /tmp another user could have made the file before, to read and change what the processes
// of a job write. Linux itself refuses such files if fs.protected_regular is set.
absl::Status FileLog::check_owner(const struct stat& file) const {
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  struct stat folder = {};
  if (stat(parent.empty() ? "." : parent.c_str(), &folder) != 0)
    return os_error("cannot examine its folder", errno);
  const bool is_shared = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & (S_IWOTH | S_IWGRP)) != 0;
  if (!is_shared || file.st_uid == ::geteuid() || file.st_uid == folder.st_uid) return absl::OkStatus();
  return error(absl::StatusCode::kPermissionDenied,
               absl::StrCat("the file belongs to user ", file.st_uid, ", expected user ", ::geteuid(),
                            ", in a folder to which other users can write; choose a path in another folder"));
}

absl::Status FileLog::check_header() {
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0) return error(absl::StatusCode::kUnavailable, std::strerror(errno));
  const std::size_t size = std::min<std::size_t>(status.st_size, kMagicBytes);
  char found[kMagicBytes];
  if (!read_all(fd_.get(), found, size, 0) || std::memcmp(found, kFileMagic, size) != 0) {
    // The file belongs to another program: do not change it.
    return error(absl::StatusCode::kInvalidArgument,
                 "the file exists and was not written by a FileStore; choose another path");
  }
  if (size < kMagicBytes && !write_all(fd_.get(), {kFileMagic, kMagicBytes}, 0)) {
    return os_error("cannot write the file", errno);
  }
  offset_ = kMagicBytes;
  return absl::OkStatus();
}

absl::Status FileLog::lock(bool exclusive, Clock& clock, absl::Time deadline) {
  deadline = std::max(deadline, clock.now() + kMinLockTime);
  absl::Duration pause = absl::Microseconds(50);
  while (!set_lock(fd_.get(), kDataLock, exclusive ? F_WRLCK : F_RDLCK)) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      return error(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("cannot lock the file: ", std::strerror(errno),
                                "; use a file system that supports locks"));
    }
    if (clock.now() >= deadline)
      return error(absl::StatusCode::kDeadlineExceeded, "timed out: another process holds the file's lock");
    // Poll: a blocking lock call has no time limit, and the process that holds the lock may be stopped.
    std::this_thread::sleep_for(absl::ToChronoMicroseconds(pause));
    pause = std::min(pause * 2, absl::Milliseconds(5));
  }
  // The last user of the file may have removed it while this process waited for the lock. A lock on a
  // removed file excludes no other process.
  struct stat open_file = {}, path_file = {};
  if (fstat(fd_.get(), &open_file) != 0 || stat(path_.c_str(), &path_file) != 0 ||
      open_file.st_ino != path_file.st_ino || open_file.st_dev != path_file.st_dev) {
    unlock();
    return error(absl::StatusCode::kUnavailable, "the file has been removed or replaced");
  }
  return absl::OkStatus();
}

void FileLog::unlock() { set_lock(fd_.get(), kDataLock, F_UNLCK); }

bool FileLog::has_changes() const {
  struct stat status = {};
  // A removed file counts as changed: the operation that then reads it reports the error.
  return fstat(fd_.get(), &status) != 0 || status.st_nlink == 0 || status.st_size != offset_;
}

bool FileLog::has_torn_tail() const {
  struct stat status = {};
  return fstat(fd_.get(), &status) == 0 && status.st_size > offset_;
}

absl::Status FileLog::cut_off_tail() {
  if (ftruncate(fd_.get(), offset_) != 0) return os_error("cannot write the file", errno);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FileLog::read() {
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0) return error(absl::StatusCode::kUnavailable, std::strerror(errno));
  std::vector<std::string> bodies;
  while (status.st_size - offset_ >= static_cast<off_t>(kRecordHeaderBytes)) {
    char header[kRecordHeaderBytes];
    if (!read_all(fd_.get(), header, sizeof(header), offset_))
      return error(absl::StatusCode::kUnavailable, "cannot read the file");
    const uint64_t size = load_number(header);
    const uint64_t rest = status.st_size - offset_ - kRecordHeaderBytes;
    // A length that no writer writes is damage; it must not be used to allocate memory.
    if (size > kMaxBodyBytes) {
      return error(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the file is damaged at byte ", offset_, ": a record of ", size, " bytes"));
    }
    // Leave `offset_` before the torn record. The next writer cuts it off.
    if (size > rest) break;  // Torn.
    std::string body(size, '\0');
    if (!read_all(fd_.get(), body.data(), size, offset_ + kRecordHeaderBytes)) {
      return error(absl::StatusCode::kUnavailable, "cannot read the file");
    }
    if (checksum(body) != load_number(header + 8)) {
      if (size == rest) break;  // Torn: the file system extended the file before it had written the bytes.
      return error(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the file is damaged at byte ", offset_, ": a record's checksum is wrong"));
    }
    bodies.push_back(std::move(body));
    offset_ += static_cast<off_t>(kRecordHeaderBytes + size);
  }
  return bodies;
}

absl::Status FileLog::append(absl::string_view body) {
  if (offset_ + kRecordHeaderBytes + body.size() > kMaxStoreBytes) {
    return error(absl::StatusCode::kResourceExhausted,
                 absl::StrCat("the file is at its limit of ", kMaxStoreBytes, " bytes"));
  }
  std::string record(kRecordHeaderBytes, '\0');
  store_number(record.data(), body.size());
  store_number(record.data() + 8, checksum(body));
  record.append(body.data(), body.size());
  // Cut off what is behind the last whole record: a writer that died has left it.
  const bool written = ftruncate(fd_.get(), offset_) == 0 && write_all(fd_.get(), record, offset_);
  if (!written) {
    const int why = errno;
    // If this fails too, readers see the remaining bytes as a torn record.
    if (ftruncate(fd_.get(), offset_) != 0) errno = why;
    return os_error("cannot write the file", why);
  }
  offset_ += static_cast<off_t>(record.size());
  return absl::OkStatus();
}

// Turns the shared presence lock into an exclusive one, which succeeds only without other holders, and
// back. The caller holds the data lock, so no other process can open the file in between.
bool FileLog::is_alone() {
  const bool alone = set_lock(fd_.get(), kPresenceLock, F_WRLCK);
  set_lock(fd_.get(), kPresenceLock, F_RDLCK);
  return alone;
}

absl::Status FileLog::clear() {
  if (ftruncate(fd_.get(), kMagicBytes) != 0) return os_error("cannot write the file", errno);
  offset_ = kMagicBytes;
  return absl::OkStatus();
}

void FileLog::remove() { unlink(path_.c_str()); }

}  // namespace gradwire::store
