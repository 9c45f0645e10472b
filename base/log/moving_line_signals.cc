#include "gradwire/base/log/moving_line_signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

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

}  // namespace

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

}  // namespace gradwire
