// A worker whose argument decides how rank 0 ends: it crashes in a call that it serves ("crash"), or returns
// 0 without shutdown() ("leave"). Rank 1 is the caller.

#include <string>

#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/tools/launch_info.h"

namespace gradwire::rpc {
namespace {

void crash_on_call() {
  int* volatile nowhere = nullptr;
  *nowhere = 1;
}
GRADWIRE_RPC(crash_on_call)

Promise<void>& called() {
  static auto* promise = new Promise<void>;
  return *promise;
}
// This call is never answered.
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
    leaves ? rpc_sync<&hold_on>(victim) : rpc_sync<&crash_on_call>(victim);
  } else if (leaves) {
    called().future().wait();
    return 0;
  }
  shutdown();
}
