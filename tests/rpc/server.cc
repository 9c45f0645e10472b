// A server's whole program: it joins and serves what the libraries it was linked with have registered.
//   server INIT_METHOD NAME RANK WORLD_SIZE

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "rpc/init_rpc.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: server INIT_METHOD NAME RANK WORLD_SIZE\n";
    return 2;
  }
  try {
    gradwire::rpc::RpcBackendOptions options;
    options.init_method = argv[1];
    options.join_timeout = absl::Seconds(60);
    gradwire::rpc::init_rpc(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), options);
    gradwire::rpc::shutdown();
  } catch (const gradwire::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
