// A worker of an open group, with a function for clients of a gateway. Its argument is the init method. It
// ends with SIGTERM.

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/tools/launch_info.h"

namespace job {

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

}  // namespace job

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  gradwire::rpc::RpcBackendOptions options;
  options.init_method = argc > 1 ? argv[1] : "env://";
  const auto agent =
      gradwire::rpc::Agent::start(gradwire::LaunchInfo::from_env().name(), -1, /*world_size=*/0, options);
  const std::string line = "ready\n";
  if (write(9, line.data(), line.size()) < 0) return 1;
  int signal = 0;
  sigwait(&signals, &signal);
  agent->shutdown(/*graceful=*/false);
}
