#include "gradwire/base/io/write.h"

#include <unistd.h>

#include <cerrno>

#include "gradwire/base/io/file_size_limit.h"

namespace gradwire {

ssize_t write_retrying(int fd, const void* data, std::size_t size) {
  const NoFileSizeSignal no_signal;
  ssize_t put = 0;
  do {
    put = ::write(fd, data, size);
  } while (put < 0 && errno == EINTR);
  return put;
}

bool write_all(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write_retrying(fd, bytes.data(), bytes.size());
    if (put == 0) errno = EIO;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

}  // namespace gradwire
