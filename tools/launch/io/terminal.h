#pragma once

#include "absl/status/statusor.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {

// A pseudo terminal in the place of a pipe: a program whose standard output is a terminal writes each line when it is
// complete, and not some kilobytes later. Bytes pass unchanged, there is no echo and no control character; who writes
// to the write end may not read from it. The read end is at its end (EIO) when nobody has the write end any more.
//
// Unavailable where the system makes no pseudo terminal (a container without /dev/ptmx, too many of them).
absl::StatusOr<Pipe> make_terminal();

}  // namespace gradwire::tools
