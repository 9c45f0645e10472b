#include <cstdint>

#include "gradwire/rpc/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/registration.h"

namespace downstream {

int64_t triple(int64_t number) { return 3 * number; }
GRADWIRE_RPC(triple)

}  // namespace downstream

// Calls triple() on a worker that has loaded this library, too.
extern "C" int64_t remote_triple(const char* worker, int64_t number) {
  return gradwire::rpc::rpc_sync<&downstream::triple>(worker, number);
}
