#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradwire::tools {

// Owns a file descriptor; -1 is none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read_end;
  Fd write_end;
};

// A pipe whose ends a worker does not inherit unless they are given to it.
absl::StatusOr<Pipe> make_pipe();

// "what: text of errno". Unavailable: what the system would not do now it may do another time.
absl::Status errno_status(const std::string& what, int error);

// Reads or writes again when a signal interrupted; otherwise as read(2) and write(2).
ssize_t read_retrying(int fd, void* data, size_t size);
ssize_t write_retrying(int fd, const void* data, size_t size);
// False when not all could be written; errno says why.
bool write_all(int fd, const char* data, size_t size);

}  // namespace gradwire::tools
