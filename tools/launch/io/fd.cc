#include "gradwire/tools/launch/io/fd.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <cerrno>

#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::tools {

absl::StatusOr<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_status("cannot create a pipe", errno);
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

ssize_t read_retrying(int fd, void* data, size_t size) {
  ssize_t got = 0;
  do {
    got = read(fd, data, size);
  } while (got < 0 && errno == EINTR);
  return got;
}

absl::StatusOr<Pipe> make_terminal() {
  Pipe terminal;
  terminal.read_end = Descriptor(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  const int master = terminal.read_end.get();
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
    return system_status("cannot create a pseudo terminal", errno);
  }
  // Open it by the descriptor, not by its name: /dev/pts may belong to another instance here.
  terminal.write_end = Descriptor(ioctl(master, TIOCGPTPEER, O_WRONLY | O_NOCTTY | O_CLOEXEC));
  termios mode{};
  if (!terminal.write_end.valid() || tcgetattr(terminal.write_end.get(), &mode) != 0) {
    return system_status("cannot open a pseudo terminal", errno);
  }
  // Raw mode: the terminal must not change the bytes, for example newlines into carriage return and newline.
  cfmakeraw(&mode);
  if (tcsetattr(terminal.write_end.get(), TCSANOW, &mode) != 0) {
    return errno_status("cannot set up a pseudo terminal", errno);
  }
  return terminal;
}

}  // namespace gradwire::tools
