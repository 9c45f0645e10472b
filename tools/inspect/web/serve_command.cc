#include "gradwire/tools/inspect/web/serve_command.h"

#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <memory>
#include <string>

#include "gradwire/tools/inspect/web/page_server.h"

namespace gradwire::inspect {

int serve_command(const Options& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  absl::StatusOr<std::unique_ptr<PageServer>> server = PageServer::start(options);
  if (!server.ok()) {
    std::fprintf(stderr, "inspect: %s\n", std::string(server.status().message()).c_str());
    return absl::IsInvalidArgument(server.status()) ? 2 : 1;
  }
  std::printf("%s\n", (*server)->url().c_str());
  std::fflush(stdout);
  std::fprintf(stderr,
               "inspect: open the address above in a browser; everyone who knows it can read the page. "
               "Ctrl-C ends the server.\n");
  int signal = 0;
  sigwait(&signals, &signal);
  return 0;
}

}  // namespace gradwire::inspect
