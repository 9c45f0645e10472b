#include "gradwire/tools/launch/io/fd.h"

#include <fcntl.h>

#include <cerrno>

#include "gradwire/base/error.h"

namespace gradwire::tools {

absl::StatusOr<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_status("cannot make a pipe", errno);
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

ssize_t read_retrying(int fd, void* data, size_t size) {
  ssize_t got = 0;
  do {
    got = read(fd, data, size);
  } while (got < 0 && errno == EINTR);
  return got;
}

ssize_t write_retrying(int fd, const void* data, size_t size) {
  ssize_t put = 0;
  do {
    put = write(fd, data, size);
  } while (put < 0 && errno == EINTR);
  return put;
}

bool write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t put = write_retrying(fd, data, size);
    if (put < 0) return false;
    data += put;
    size -= put;
  }
  return true;
}

}  // namespace gradwire::tools
