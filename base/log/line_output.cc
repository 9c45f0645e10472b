#include "gradwire/base/log/line_output.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log/moving_line_signals.h"

namespace gradwire {
namespace {

// Returns to the first column and erases the line.
constexpr absl::string_view kClear = "\r\x1b[K";

// The first `count` characters of a text in UTF-8.
absl::string_view first_characters(absl::string_view text, std::size_t count) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] & 0xc0) == 0x80) continue;
    if (count-- == 0) return text.substr(0, i);
  }
  return text;
}

std::size_t width_of(int terminal) {
  winsize size{};
  return ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

LineOutput::LineOutput(int fd) : fd_(fd), terminal_(isatty(fd) == 1), process_(getpid()) {}

LineOutput& LineOutput::standard_error() {
  static LineOutput* const output = new LineOutput(STDERR_FILENO);
  return *output;
}

// A short write happens only if the descriptor is in non-blocking mode or a signal interrupts it. An error
// cannot be reported anywhere.
void LineOutput::write_all(absl::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Wait a moment for a slow reader, then drop the rest.
      pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
      if (poll(&ready, 1, 1000) > 0 && (ready.revents & POLLOUT) != 0) continue;
    }
    if (put <= 0) return;
    bytes.remove_prefix(put);
  }
}

void LineOutput::write(absl::string_view lines) {
  // Without a terminal there is no moving line, and no lock is needed. A forked child must not take the lock,
  // which a thread of its parent may hold.
  if (!terminal_ || getpid() != process_) return write_all(lines);
  MutexLock lock(mutex_);
  if (owner_ == nullptr) return write_all(lines);
  write_all(absl::StrCat(kClear, lines, moving_));
}

bool LineOutput::can_move() const {
  return terminal_ && getpid() == process_ && isatty(fd_) == 1 && tcgetpgrp(fd_) == getpgrp();
}

void LineOutput::draw(const void* owner, absl::string_view text) {
  if (!can_move()) return;
  pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) <= 0) return;
  MutexLock lock(mutex_);
  // The last column stays free: some terminals begin a new line when it is filled.
  moving_ = std::string(first_characters(text, width_of(fd_) - 1));
  if (owner_ == nullptr) clear_line_on_signals(fd_);
  owner_ = owner;
  write_all(absl::StrCat(kClear, moving_));
}

void LineOutput::clear(const void* owner) {
  if (!terminal_ || getpid() != process_) return;
  MutexLock lock(mutex_);
  if (owner_ == owner) clear_locked();
}

void LineOutput::clear_any() {
  if (!terminal_ || getpid() != process_) return;
  MutexLock lock(mutex_);
  clear_locked();
}

void LineOutput::clear_locked() {
  if (owner_ == nullptr) return;
  owner_ = nullptr;
  moving_.clear();
  write_all(kClear);
  keep_line_on_signals(fd_);
}

}  // namespace gradwire
