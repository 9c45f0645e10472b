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

absl::StatusOr<LaunchSignals> LaunchSignals::block() {
  LaunchSignals signals;
  sigset_t passed_on;
  sigemptyset(&passed_on);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    if (!is_ignored(signal)) sigaddset(&passed_on, signal);
  }
  pthread_sigmask(SIG_BLOCK, &passed_on, &signals.original_mask_);
  // A reader of the launcher's output that goes away must not end the launcher.
  signals.sigpipe_was_ignored_ = is_ignored(SIGPIPE);
  signal(SIGPIPE, SIG_IGN);
  // Ignored, it would make the kernel forget how workers ended.
  signal(SIGCHLD, SIG_DFL);
  signals.fd_ = Descriptor(signalfd(-1, &passed_on, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_.valid()) return errno_status("cannot watch signals", errno);
  return signals;
}

int LaunchSignals::next() {
  signalfd_siginfo info{};
  if (read_retrying(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace gradwire::tools
