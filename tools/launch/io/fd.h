#pragma once

#include <unistd.h>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/io/write.h"

namespace gradwire::tools {

// The two ends of a pipe, or of a pseudo terminal.
struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

// Creates a pipe. A worker does not inherit its ends unless they are given to it.
absl::StatusOr<Pipe> make_pipe();

// As read(2), but repeated if a signal interrupts it. base/io/write.h has the same for write(2).
ssize_t read_retrying(int fd, void* data, size_t size);

// Creates a pseudo terminal for use instead of a pipe. A program whose standard output is a terminal writes
// each line when it is complete, instead of some kilobytes at a time. Bytes pass unchanged: there is no echo,
// and control characters have no effect. The write end cannot be read. A read of the read end fails with EIO
// when no process has the write end any more.
//
// ResourceExhausted if there are too many of them, or no descriptor is left; Unavailable if the system cannot
// create a pseudo terminal for another reason, as in a container without /dev/ptmx.
absl::StatusOr<Pipe> make_terminal();

}  // namespace gradwire::tools
