#pragma once

#include <sys/types.h>

#include <cstddef>

#include "absl/strings/string_view.h"

namespace gradwire {

// As write(2), but repeated if a signal interrupts it. A file that would exceed the process's limit
// (file_size_limit.h) is an error, EFBIG, and sends no signal.
ssize_t write_retrying(int fd, const void* data, std::size_t size);

// Writes all bytes with write_retrying(). Returns false if that failed; errno is then set. For blocking
// descriptors: it fails when a non-blocking one is full. May be used in a signal handler.
bool write_all(int fd, absl::string_view bytes);

}  // namespace gradwire
