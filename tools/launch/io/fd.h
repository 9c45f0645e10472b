#pragma once

#include <unistd.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::tools {

// The two ends of a pipe, or of a pseudo terminal.
struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

// Creates a pipe. A worker does not inherit its ends unless they are given to it.
absl::StatusOr<Pipe> make_pipe();

// As read(2) and write(2), but repeated if a signal interrupts them.
ssize_t read_retrying(int fd, void* data, size_t size);
ssize_t write_retrying(int fd, const void* data, size_t size);
// Writes all bytes. Returns false if that failed; errno is then set.
bool write_all(int fd, absl::string_view bytes);

// Creates a pseudo terminal for use instead of a pipe. A program whose standard output is a terminal writes
// each line when it is complete, instead of some kilobytes at a time. Bytes pass unchanged: there is no echo,
// and control characters have no effect. The write end cannot be read. A read of the read end fails with EIO
// when no process has the write end any more.
//
// Unavailable if the system cannot create a pseudo terminal (a container without /dev/ptmx, too many of
// them).
absl::StatusOr<Pipe> make_terminal();

}  // namespace gradwire::tools
