// traced_worker CALLS END: rank 0 calls rank 1 CALLS times, and then each worker ends.
//   shutdown: by shutdown().
//   fail: in the first round, rank 1 exits with 3 while rank 0 waits for it. In others by shutdown().
//   crash: rank 1 crashes in a call of rank 0.
// It knows nothing of traces.

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/time/time.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/tools/launch_info.h"

namespace gradwire::rpc {
namespace {

int64_t twice(int64_t value) { return 2 * value; }
GRADWIRE_RPC(twice)

void crash_on_call() {
  int* volatile nowhere = nullptr;
  *nowhere = 1;
}
GRADWIRE_RPC(crash_on_call)

}  // namespace
}  // namespace gradwire::rpc

int main(int argc, char** argv) {
  using namespace gradwire::rpc;
  if (argc != 3) return 2;
  const std::string end = argv[2];
  const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
  init_rpc(info.name());
  if (info.rank == 0) {
    for (int64_t i = 0; i < std::atoi(argv[1]); ++i) rpc_sync<&twice>("default1", i);
  }
  rpc_barrier();
  if (end == "crash" && info.rank == 0)
    rpc_sync<&crash_on_call>(Destination("default1").with_timeout(absl::InfiniteDuration()));
  if (end == "fail" && info.round == 0) {
    if (info.rank == 1) return 3;
    while (true) pause();
  }
  shutdown();
}
