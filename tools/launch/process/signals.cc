#include "gradwire/tools/launch/process/signals.h"

#include <sys/signalfd.h>

#include <cerrno>

#include "gradwire/base/error.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

// A blocked signal stays pending until the loop reads it from the signalfd. So no handler runs between two
// instructions of the launcher, and no signal is lost before the loop runs.
absl::StatusOr<LaunchSignals> LaunchSignals::block() {
  LaunchSignals signals;
  sigset_t forwarded;
  sigemptyset(&forwarded);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    if (!is_ignored(signal)) sigaddset(&forwarded, signal);
  }
  pthread_sigmask(SIG_BLOCK, &forwarded, &signals.original_mask_);
  // If a reader of the launcher's output ends, SIGPIPE must not end the launcher.
  signals.sigpipe_was_ignored_ = is_ignored(SIGPIPE);
  signal(SIGPIPE, SIG_IGN);
  // If SIGCHLD were ignored, the kernel would not keep how workers ended.
  signal(SIGCHLD, SIG_DFL);
  signals.fd_ = Descriptor(signalfd(-1, &forwarded, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_.valid()) return errno_status("cannot watch signals", errno);
  return signals;
}

int LaunchSignals::next() {
  signalfd_siginfo info{};
  if (read_retrying(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace gradwire::tools
