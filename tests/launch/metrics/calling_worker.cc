// A worker whose rank 0 calls rank 1 ten times. Then each writes its rank to descriptor 9 and runs until the
// launcher ends it. On the second start it says so.

#include <unistd.h>

#include <cstdio>

#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/tools/launch_info.h"

namespace gradwire::rpc {
namespace {

int64_t twice(int64_t value) { return 2 * value; }
GRADWIRE_RPC(twice)

}  // namespace
}  // namespace gradwire::rpc

int main() {
  using namespace gradwire::rpc;
  const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
  init_rpc(info.name());
  if (info.rank == 0) {
    for (int64_t i = 0; i < 10; ++i) rpc_sync<&twice>("default1", i);
  }
  rpc_barrier();
  dprintf(9, "%d %d %d\n", info.rank, info.restart_count, getpid());
  while (true) pause();
}
