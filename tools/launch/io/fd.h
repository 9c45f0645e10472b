#pragma once

#include <unistd.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::tools {

struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

// A pipe whose ends a worker does not inherit unless they are given to it.
absl::StatusOr<Pipe> make_pipe();

// Reads or writes again when a signal interrupted; otherwise as read(2) and write(2).
ssize_t read_retrying(int fd, void* data, size_t size);
ssize_t write_retrying(int fd, const void* data, size_t size);
// False when not all could be written; errno says why.
bool write_all(int fd, absl::string_view bytes);

// A pseudo terminal in the place of a pipe: a program whose standard output is a terminal writes each line
// when it is complete, and not some kilobytes later. Bytes pass unchanged, there is no echo and no control
// character; who writes to the write end may not read from it. The read end is at its end (EIO) when nobody
// has the write end any more.
//
// Unavailable where the system makes no pseudo terminal (a container without /dev/ptmx, too many of them).
absl::StatusOr<Pipe> make_terminal();

}  // namespace gradwire::tools
