// A worker process of ipc_process_test, with the arguments of tests/rpc/server.cc. It serves functions.h.
#include <cstdlib>
#include <iostream>

#include "gradwire/base/error.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tests/device/lag_device.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: ipc_worker INIT_METHOD NAME RANK WORLD_SIZE\n";
    return 2;
  }
  gradwire::lag::set_lag({});
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
