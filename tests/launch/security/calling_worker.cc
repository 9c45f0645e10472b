// Calls the worker with the next rank, and prints the sum. Arguments: the transport, or "any"; the beginning
// of the workers' names, which by default are those of LaunchInfo::name().

#include <cstdio>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/tools/launch_info.h"

namespace gradwire::rpc {
namespace {

int add(int a, int b) { return a + b; }
GRADWIRE_RPC(add)

}  // namespace
}  // namespace gradwire::rpc

int main(int argc, char** argv) {
  using namespace gradwire::rpc;
  try {
    const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
    const auto name = [&](int rank) {
      return argc > 2 ? absl::StrCat(argv[2], rank) : absl::StrCat(info.role, rank);
    };
    RpcBackendOptions options;
    if (std::string(argv[1]) != "any") options.transports = {argv[1]};
    init_rpc(argc > 2 ? name(info.rank) : info.name(), -1, -1, options);
    const int sum = rpc_sync<&add>(name((info.rank + 1) % info.world_size), info.rank, 40);
    std::printf("%d\n", sum);
    shutdown();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
