#include "gradwire/tests/rpc/counting.h"

#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"

namespace counting {
namespace {

gradwire::Promise<void>& held_promise() {
  static auto* promise = new gradwire::Promise<void>;
  return *promise;
}

gradwire::Promise<void>& never() {
  static auto* promise = new gradwire::Promise<void>;
  return *promise;
}

}  // namespace

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

GRADWIRE_RPC_SERIAL_CLASS(Tally, int64_t)
GRADWIRE_RPC_METHOD(Tally, count)

void note_held() { held_promise().set_value(); }
GRADWIRE_RPC(note_held)

gradwire::Future<void> hold() {
  gradwire::rpc::rpc_sync<&note_held>(gradwire::rpc::CallContext::current()->caller());
  return never().future();
}
GRADWIRE_RPC(hold)

gradwire::Future<void> held() { return held_promise().future(); }

}  // namespace counting
