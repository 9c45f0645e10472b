// A server's whole program: it joins and serves what the libraries it was linked with have registered.
//   server INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS DEAD_AFTER_MS]

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "rpc/init_rpc.h"

int main(int argc, char** argv) {
  if (argc != 5 && argc != 7) {
    std::cerr << "usage: server INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS DEAD_AFTER_MS]\n";
    return 2;
  }
  try {
    gradwire::rpc::RpcBackendOptions options;
    options.init_method = argv[1];
    options.join_timeout = absl::Seconds(60);
    if (argc == 7) {
      options.heartbeat.interval = absl::Milliseconds(std::atoi(argv[5]));
      options.heartbeat.suspect_after = 5 * options.heartbeat.interval;
      options.heartbeat.dead_after = absl::Milliseconds(std::atoi(argv[6]));
    }
    gradwire::rpc::init_rpc(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), options);
    gradwire::rpc::shutdown();
  } catch (const gradwire::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
