// torch_member STORE NAME RANK SIZE [late]: a worker of a job that is also a rank of a process group, and
// whose store is a file. It calls all_reduce; if it is late, when it has read a byte. It runs until its
// standard input ends.
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/store/file_store.h"

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: torch_member STORE NAME RANK SIZE [late]\n");
    return 2;
  }
  const int rank = std::atoi(argv[3]), size = std::atoi(argv[4]);
  const auto store = std::make_shared<gradwire::store::FileStore>(argv[1]);
  gradwire::rpc::RpcBackendOptions options;
  options.store = store;
  const auto agent = gradwire::rpc::Agent::start(argv[2], rank, size, options);
  const auto group = gradwire::collectives::ProcessGroup::create(
      {.backend = "cpu", .timeout = absl::Minutes(30), .world_size = size, .rank = rank, .store = store});
  char byte = 0;
  if (argc > 5 && read(STDIN_FILENO, &byte, 1) != 1) return 1;
  group->all_reduce(at::ones({4}));
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  agent->shutdown(/*graceful=*/false);
  return 0;
}
