// member STORE NAME RANK SIZE: a worker of a job, whose store is a file. It runs until its standard input
// ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/store/file_store.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: member STORE NAME RANK SIZE\n");
    return 2;
  }
  gradwire::rpc::RpcBackendOptions options;
  options.store = std::make_shared<gradwire::store::FileStore>(argv[1]);
  // A member that is paused lives on.
  options.heartbeat.dead_after = absl::Minutes(30);
  const auto agent = gradwire::rpc::Agent::start(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), options);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  agent->shutdown(/*graceful=*/false);
  return 0;
}
