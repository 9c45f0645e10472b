// A server's whole program: it joins and serves what the libraries it was linked with have registered.
//   server INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS DEAD_AFTER_MS]
// The exit code for an error is 100 and its code.

#include "gradwire/tests/rpc/server_main.h"

int main(int argc, char** argv) {
  return gradwire::rpc::server_main(argc, argv, [] {});
}
