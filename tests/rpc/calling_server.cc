// A server that calls the worker "client" repeatedly, until a call fails with another code than Unavailable.
//   calling_server INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS DEAD_AFTER_MS]

#include "absl/time/clock.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/tests/rpc/counting.h"
#include "gradwire/tests/rpc/server_main.h"

int main(int argc, char** argv) {
  return gradwire::rpc::server_main(argc, argv, [] {
    while (true) {
      try {
        (void)gradwire::rpc::rpc_sync<&counting::add>("client", 1, 2);
      } catch (const gradwire::Error& error) {
        // Unavailable means that a connection broke. It does not mean that this worker was declared dead.
        if (error.status().code() != absl::StatusCode::kUnavailable) throw;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
}
