#include "gradwire/store/file/file_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {
namespace {

constexpr char kFileMagic[] = "gradwire store 1";
constexpr std::size_t kMagicBytes = 16;
constexpr std::size_t kRecordHeaderBytes = 16;
// Two values (compare_set never writes more than one), a key and the framing of the message.
constexpr uint64_t kMaxBodyBytes = kMaxValueBytes + kMaxKeyBytes + 256;

// Bytes far behind any record; locking them locks no data.
constexpr off_t kDataLock = off_t{1} << 60;
constexpr off_t kPresenceLock = (off_t{1} << 60) + 1;

constexpr absl::Duration kLeastLockTime = absl::Seconds(1);

void store_number(char* at, uint64_t value) {
  for (int i = 0; i < 8; ++i) at[i] = static_cast<char>(value >> (8 * i));
}

uint64_t load_number(const char* at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  return value;
}

// It only has to tell a whole record from a torn one, and no library the project uses has a checksum whose
// value is the same from one release to the next.
uint64_t checksum(absl::string_view bytes) { return stable_hash(bytes); }

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
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case EISDIR:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

FileLog::~FileLog() { close(); }

void FileLog::close() {
  if (fd_ >= 0) ::close(fd_);  // Frees both locks.
  fd_ = -1;
  offset_ = 0;
}

absl::Status FileLog::error(absl::StatusCode code, absl::string_view what) const {
  return absl::Status(code, absl::StrCat("FileStore ", path_, ": ", what));
}

absl::Status FileLog::open(const std::string& path, Clock& clock, absl::Time deadline) {
  // The last user of an older file may remove it between this process's open and its lock; then the next try
  // makes a new one.
  while (true) {
    absl::Status status = open_once(path, clock, deadline);
    if (!absl::IsUnavailable(status) || clock.now() >= deadline) return status;
  }
}

absl::Status FileLog::open_once(const std::string& path, Clock& clock, absl::Time deadline) {
  close();
  path_ = path;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd_ < 0) {
    const int why = errno;
    return error(why == ENXIO || why == ELOOP ? absl::StatusCode::kInvalidArgument : code_of(why),
                 absl::StrCat("cannot be opened or created: ", std::strerror(why)));
  }
  struct stat status = {};
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    return error(absl::StatusCode::kInvalidArgument, "is not a regular file");
  }
  GRADWIRE_RETURN_IF_ERROR(lock(/*exclusive=*/true, clock, deadline));
  GRADWIRE_RETURN_IF_ERROR(check_header());
  // Never refused: only is_alone() asks for it exclusively, and gives it back under the data lock.
  if (!set_lock(fd_, kPresenceLock, F_RDLCK)) {
    return error(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("cannot be locked: ", std::strerror(errno), "; does the file system have locks?"));
  }
  return absl::OkStatus();
}

absl::Status FileLog::check_header() {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) return error(absl::StatusCode::kUnavailable, std::strerror(errno));
  const std::size_t size = std::min<std::size_t>(status.st_size, kMagicBytes);
  char found[kMagicBytes];
  if (!read_all(fd_, found, size, 0) || std::memcmp(found, kFileMagic, size) != 0) {
    // Somebody else's file: it stays as it is.
    return error(absl::StatusCode::kInvalidArgument, "exists and is not a store's file; choose another path");
  }
  if (size < kMagicBytes && !write_all(fd_, {kFileMagic, kMagicBytes}, 0)) {
    return error(code_of(errno), std::strerror(errno));
  }
  offset_ = kMagicBytes;
  return absl::OkStatus();
}

absl::Status FileLog::lock(bool exclusive, Clock& clock, absl::Time deadline) {
  deadline = std::max(deadline, clock.now() + kLeastLockTime);
  absl::Duration pause = absl::Microseconds(50);
  while (!set_lock(fd_, kDataLock, exclusive ? F_WRLCK : F_RDLCK)) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      return error(
          absl::StatusCode::kFailedPrecondition,
          absl::StrCat("cannot be locked: ", std::strerror(errno), "; does the file system have locks?"));
    }
    if (clock.now() >= deadline)
      return error(absl::StatusCode::kDeadlineExceeded, "another process holds its lock");
    // Waiting in the system has no time limit, and a holder may have been stopped.
    std::this_thread::sleep_for(absl::ToChronoMicroseconds(pause));
    pause = std::min(pause * 2, absl::Milliseconds(5));
  }
  struct stat here = {}, there = {};
  if (fstat(fd_, &here) != 0 || stat(path_.c_str(), &there) != 0 || here.st_ino != there.st_ino ||
      here.st_dev != there.st_dev) {
    unlock();
    return error(absl::StatusCode::kUnavailable, "the file has been removed or replaced");
  }
  return absl::OkStatus();
}

void FileLog::unlock() { set_lock(fd_, kDataLock, F_UNLCK); }

bool FileLog::has_news() const {
  struct stat status = {};
  // A removed file is news: the operation that looks will say so.
  return fstat(fd_, &status) != 0 || status.st_nlink == 0 || status.st_size != offset_;
}

bool FileLog::has_torn_tail() const {
  struct stat status = {};
  return fstat(fd_, &status) == 0 && status.st_size > offset_;
}

absl::Status FileLog::cut_off_tail() {
  if (ftruncate(fd_, offset_) != 0) return error(code_of(errno), std::strerror(errno));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FileLog::read() {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) return error(absl::StatusCode::kUnavailable, std::strerror(errno));
  std::vector<std::string> bodies;
  while (status.st_size - offset_ >= static_cast<off_t>(kRecordHeaderBytes)) {
    char header[kRecordHeaderBytes];
    if (!read_all(fd_, header, sizeof(header), offset_))
      return error(absl::StatusCode::kUnavailable, "cannot be read");
    const uint64_t size = load_number(header);
    const uint64_t rest = status.st_size - offset_ - kRecordHeaderBytes;
    if (size > kMaxBodyBytes) {
      return error(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("is damaged at byte ", offset_, ": a record of ", size, " bytes"));
    }
    if (size > rest) break;  // Torn.
    std::string body(size, '\0');
    if (!read_all(fd_, body.data(), size, offset_ + kRecordHeaderBytes)) {
      return error(absl::StatusCode::kUnavailable, "cannot be read");
    }
    if (checksum(body) != load_number(header + 8)) {
      if (size == rest) break;  // Torn, in a file system that grew the file before it had the bytes.
      return error(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("is damaged at byte ", offset_, ": a record's checksum is wrong"));
    }
    bodies.push_back(std::move(body));
    offset_ += static_cast<off_t>(kRecordHeaderBytes + size);
  }
  return bodies;
}

absl::Status FileLog::append(absl::string_view body) {
  if (offset_ + kRecordHeaderBytes + body.size() > kMaxStoreBytes) {
    return error(absl::StatusCode::kResourceExhausted,
                 absl::StrCat("is at its limit of ", kMaxStoreBytes, " bytes"));
  }
  std::string record(kRecordHeaderBytes, '\0');
  store_number(record.data(), body.size());
  store_number(record.data() + 8, checksum(body));
  record.append(body.data(), body.size());
  // What lies behind the last whole record was left by a writer that died.
  const bool written = ftruncate(fd_, offset_) == 0 && write_all(fd_, record, offset_);
  if (!written) {
    const int why = errno;
    // A reader takes what remains for torn if this fails too.
    if (ftruncate(fd_, offset_) != 0) errno = why;
    return error(code_of(why), absl::StrCat("cannot be written: ", std::strerror(why)));
  }
  offset_ += static_cast<off_t>(record.size());
  return absl::OkStatus();
}

bool FileLog::is_alone() {
  const bool alone = set_lock(fd_, kPresenceLock, F_WRLCK);
  set_lock(fd_, kPresenceLock, F_RDLCK);
  return alone;
}

absl::Status FileLog::clear() {
  if (ftruncate(fd_, kMagicBytes) != 0) return error(code_of(errno), std::strerror(errno));
  offset_ = kMagicBytes;
  return absl::OkStatus();
}

void FileLog::remove() { unlink(path_.c_str()); }

}  // namespace gradwire::store
