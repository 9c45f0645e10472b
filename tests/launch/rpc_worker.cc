// A worker that ends as its argument says: in a call that it serves ("crash"), or well, but without shutdown
// ("leave"). Rank 0 does that; rank 1 is the one that suffers.

#include <string>

#include "gradwire/rpc/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/tools/launch_info.h"

namespace gradwire::rpc {
namespace {

void crash_as_told() {
  int* volatile nowhere = nullptr;
  *nowhere = 1;
}
GRADWIRE_RPC(crash_as_told)

Promise<void>& called() {
  static auto* promise = new Promise<void>;
  return *promise;
}
// Is never answered.
Future<void> hold_on() {
  static auto* never = new Promise<void>;
  called().set_value();
  return never->future();
}
GRADWIRE_RPC(hold_on)

}  // namespace
}  // namespace gradwire::rpc

int main(int argc, char** argv) {
  using namespace gradwire::rpc;
  const bool leaves = argc > 1 && std::string(argv[1]) == "leave";
  const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
  init_rpc(info.name());
  if (info.rank == 1) {
    const Destination victim = Destination("default0").with_timeout(absl::InfiniteDuration());
    leaves ? rpc_sync<&hold_on>(victim) : rpc_sync<&crash_as_told>(victim);
  } else if (leaves) {
    called().future().wait();
    return 0;
  }
  shutdown();
}
