// The complete program of a server. It joins and serves the functions of the libraries with which it is
// linked.
//   server INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS DEAD_AFTER_MS]
// Exit code: 0, or exit_code_of() the error.

#include "gradwire/tests/rpc/server_main.h"

int main(int argc, char** argv) {
  return gradwire::rpc::server_main(argc, argv, [] {});
}
