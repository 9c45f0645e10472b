#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::inspect {

// The terminal of the live view: its second screen, without echo and line editing. The first screen and the
// settings come back in the destructor. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the view, and SIGWINCH
// changes its size: they arrive as events. SIGTSTP is not sent by a key. At most one at a time; not
// thread-safe.
class Terminal {
 public:
  struct Size {
    std::size_t width = 80;
    std::size_t height = 24;
  };
  struct Event {
    // The bytes of keys; empty if the time is over.
    std::string keys;
    // A signal, or the end of the terminal, asks the program to end.
    bool ends = false;
  };

  // Must be called before other threads are started, because they inherit the signals that are blocked.
  // FailedPrecondition if the standard input or output is not a terminal; Unavailable if it cannot be set.
  static absl::StatusOr<std::unique_ptr<Terminal>> open();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Size size() const;
  // Draws the lines from the top. Only lines that have changed are sent. `selected`: the line that is shown
  // inverted, or a number beyond the lines.
  void show(const std::vector<std::string>& lines, std::size_t selected);
  // Waits for keys or a signal.
  Event wait(absl::Duration timeout);

 private:
  struct Saved;
  Terminal(std::unique_ptr<Saved> saved, Descriptor signals);

  const std::unique_ptr<Saved> saved_;
  const Descriptor signals_;
  std::vector<std::string> shown_;
  Size drawn_size_;
};

}  // namespace gradwire::inspect
