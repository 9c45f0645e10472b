#pragma once

#include <unistd.h>

#include "absl/status/statusor.h"
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
bool write_all(int fd, const char* data, size_t size);

}  // namespace gradwire::tools
