// As server.cc, with the functions of far_work.h.
//   torch_server INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS DEAD_AFTER_MS]

#include "gradwire/tests/rpc/far_work.h"
#include "gradwire/tests/rpc/server_main.h"

int main(int argc, char** argv) {
  far_work::register_scripts();
  return gradwire::rpc::server_main(argc, argv, [] {});
}
