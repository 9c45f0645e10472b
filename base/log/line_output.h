#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// Writes whole lines to a descriptor, usually standard error, with one write(2) each, so that the lines of
// threads and processes are not mixed. On a terminal it can keep a moving line below them: a line that is
// drawn again and again in its place.
//
// A thread on duty (base/duty.h) never waits for the reader of the descriptor: a full pipe, or a terminal
// that is stopped (Ctrl-S). Its lines are kept until the descriptor takes them, and written before those of
// the next thread that writes. Lines beyond kMostKept bytes are dropped and counted.
//
// The moving line is cleared before other lines and drawn again after them. It is also cleared when SIGINT,
// SIGTERM or SIGHUP ends the process, unless the program handles these signals itself.
//
// Thread-safe. Does not own the descriptor. In a forked child there is no moving line.
class LineOutput {
 public:
  explicit LineOutput(int fd);
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  static constexpr std::size_t kMostKept = std::size_t{1} << 20;

  // Writes `lines`, which end with a newline.
  void write(absl::string_view lines);
  // Writes the lines that are kept, as far as the descriptor takes them within this time.
  void flush(absl::Duration at_most);

  // Whether a moving line can be drawn: the descriptor is a terminal, and this process belongs to the job
  // that the terminal has in the foreground. A process in the background must not disturb the one in the
  // foreground, and the workers of a launcher are in the background.
  bool can_move() const;
  // Draws the moving line of `owner` instead of the one before. `text` must have no control characters; it is
  // cut to the width of the terminal. Draws nothing if can_move() is false, or if the terminal is stopped
  // (Ctrl-S).
  void draw(const void* owner, absl::string_view text);
  // Clears the moving line if it is that of `owner`.
  void clear(const void* owner);
  // Clears the moving line until somebody draws the next one. For code that writes to the terminal by other
  // means.
  void clear_any();

  // The output to standard error. It is never destroyed.
  static LineOutput& standard_error();

 private:
  void write_all(absl::string_view bytes) const;
  void write_locked(absl::string_view lines) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void clear_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the descriptor takes bytes now, or within this time.
  bool is_ready(absl::Duration at_most) const;
  bool has_kept() const;
  void keep(absl::string_view lines);
  // Returns the first part of what is kept; empty if nothing is.
  std::string take_kept();
  // Writes what is kept. With `on_duty` it stops, and returns false, when the descriptor takes nothing.
  bool write_kept_locked(bool on_duty) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int fd_;
  const bool terminal_;
  const pid_t process_;

  // Held while something is written. Lock order: before kept_mutex_.
  Mutex mutex_;
  std::string moving_ ABSL_GUARDED_BY(mutex_);
  const void* owner_ ABSL_GUARDED_BY(mutex_) = nullptr;

  mutable Mutex kept_mutex_;
  std::deque<std::string> kept_ ABSL_GUARDED_BY(kept_mutex_);
  std::size_t kept_bytes_ ABSL_GUARDED_BY(kept_mutex_) = 0;
  // Number of writes whose lines were dropped since the last report.
  uint64_t dropped_ ABSL_GUARDED_BY(kept_mutex_) = 0;
};

}  // namespace gradwire
