#include "gradwire/base/log/line_output.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/io/file_size_limit.h"
#include "gradwire/base/log/log_record.h"
#include "gradwire/base/log/log_settings.h"

namespace gradwire {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> terminal{-1};

// SA_RESETHAND has set the signal to its default action, which ends the process when the signal is raised
// again and this handler returns.
void handle(int signal) {
  const int fd = terminal.load();
  constexpr char kClear[] = "\r\x1b[K";
  if (fd >= 0) [[maybe_unused]]
    const ssize_t written = write(fd, kClear, sizeof(kClear) - 1);
  raise(signal);
}

// From clear_line_on_signals() until keep_line_on_signals(), a SIGINT, SIGTERM or SIGHUP that ends the
// process first clears the line of the terminal `fd` in which the cursor is. Without this the shell's prompt
// would stand behind the moving line.
//
// Signals for which the program has a handler, or which it ignores, are left alone, also those that get a
// handler between the two calls. One terminal at a time; the caller serialises the calls.
void clear_line_on_signals(int fd) {
  if (terminal.exchange(fd) >= 0) return;
  for (const int signal : kSignals) {
    struct sigaction present {};
    if (sigaction(signal, nullptr, &present) != 0 || (present.sa_flags & SA_SIGINFO) != 0 ||
        present.sa_handler != SIG_DFL) {
      continue;
    }
    struct sigaction action {};
    action.sa_handler = &handle;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

void keep_line_on_signals(int fd) {
  int expected = fd;
  if (!terminal.compare_exchange_strong(expected, -1)) return;
  for (const int signal : kSignals) {
    struct sigaction present {};
    if (sigaction(signal, nullptr, &present) != 0 || (present.sa_flags & SA_SIGINFO) != 0 ||
        present.sa_handler != &handle) {
      continue;
    }
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

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
  static LineOutput* const output = [] {
    std::atexit([] { standard_error().flush(absl::Milliseconds(500)); });
    return new LineOutput(STDERR_FILENO);
  }();
  return *output;
}

// A short write happens only if the descriptor is in non-blocking mode or a signal interrupts it. An error
// cannot be reported anywhere.
void LineOutput::write_all(absl::string_view bytes) const {
  // A log file at its limit of size must not end the process.
  const NoFileSizeSignal no_signal;
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

// One thread writes at a time. The steps:
//   1. A thread that may wait writes what is kept, and then its own lines.
//   2. A thread on duty keeps its lines. If no other thread is writing, it writes as much as the descriptor
//      takes without waiting.
//   3. If another thread is writing, that one writes these lines. So each thread checks again whether lines
//      are kept, after it has released the lock.
void LineOutput::write(absl::string_view lines) {
  // A forked child must not take a lock, which a thread of its parent may hold.
  if (getpid() != process_) return write_all(lines);
  const bool duty = on_duty();
  if (duty) {
    keep(lines);
  } else {
    MutexLock lock(mutex_);
    write_kept_locked(/*on_duty=*/false);
    write_locked(lines);
  }
  while (has_kept() && mutex_.try_lock()) {
    const bool done = write_kept_locked(duty);
    mutex_.unlock();
    if (!done) return;
  }
}

void LineOutput::flush(absl::Duration at_most) {
  if (getpid() != process_) return;
  const absl::Time deadline = absl::Now() + at_most;
  while (has_kept() && is_ready(deadline - absl::Now()) && mutex_.try_lock()) {
    write_kept_locked(/*on_duty=*/true);
    mutex_.unlock();
  }
}

void LineOutput::write_locked(absl::string_view lines) {
  if (owner_ == nullptr) return write_all(lines);
  write_all(absl::StrCat(kClear, lines, moving_));
}

bool LineOutput::is_ready(absl::Duration at_most) const {
  pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
  const int milliseconds = static_cast<int>(
      absl::ToInt64Milliseconds(std::clamp(at_most, absl::ZeroDuration(), absl::Minutes(1))));
  return poll(&ready, 1, milliseconds) > 0;
}

bool LineOutput::has_kept() const {
  MutexLock lock(kept_mutex_);
  return !kept_.empty();
}

// A pipe that is ready takes PIPE_BUF bytes at once. Longer lines are kept in parts of this size.
void LineOutput::keep(absl::string_view lines) {
  MutexLock lock(kept_mutex_);
  if (kept_bytes_ + lines.size() > kMostKept) {
    ++dropped_;
    return;
  }
  kept_bytes_ += lines.size();
  for (; !lines.empty(); lines.remove_prefix(std::min<std::size_t>(lines.size(), PIPE_BUF)))
    kept_.emplace_back(lines.substr(0, PIPE_BUF));
}

std::string LineOutput::take_kept() {
  MutexLock lock(kept_mutex_);
  if (kept_.empty()) return "";
  std::string part = std::move(kept_.front());
  kept_.pop_front();
  kept_bytes_ -= part.size();
  if (kept_.empty() && dropped_ > 0) {
    const LogSettings& settings = log_settings();
    const std::string message = absl::StrCat(std::exchange(dropped_, 0),
                                             " lines are missing here, because nobody read standard error");
    kept_.push_back(format_record({.level = LogLevel::kWarning,
                                   .time = absl::Now(),
                                   .pid = process_,
                                   .rank = settings.rank,
                                   .message = message},
                                  settings.format));
    kept_bytes_ += kept_.back().size();
  }
  return part;
}

bool LineOutput::write_kept_locked(bool on_duty) {
  while (has_kept()) {
    if (on_duty && !is_ready(absl::ZeroDuration())) return false;
    write_locked(take_kept());
  }
  return true;
}

bool LineOutput::can_move() const {
  return terminal_ && getpid() == process_ && isatty(fd_) == 1 && tcgetpgrp(fd_) == getpgrp();
}

void LineOutput::draw(const void* owner, absl::string_view text) {
  if (!can_move()) return;
  // A thread that is writing may wait for the terminal. The line is drawn another time then.
  if (!is_ready(absl::ZeroDuration())) return;
  if (!mutex_.try_lock()) return;
  // The last column stays free: some terminals begin a new line when it is filled.
  moving_ = std::string(first_characters(text, width_of(fd_) - 1));
  if (owner_ == nullptr) clear_line_on_signals(fd_);
  owner_ = owner;
  write_all(absl::StrCat(kClear, moving_));
  mutex_.unlock();
}

void LineOutput::clear(const void* owner) {
  if (!terminal_ || getpid() != process_) return;
  if (on_duty() && !is_ready(absl::ZeroDuration())) return;
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
