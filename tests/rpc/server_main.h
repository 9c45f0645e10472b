#pragma once

#include <cstdlib>
#include <functional>
#include <iostream>

#include "gradwire/base/error.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/tests/rpc/exit_code.h"

namespace gradwire::rpc {

// Implements main() of a server with the arguments INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS
// DEAD_AFTER_MS]. Joins, does `work`, and serves until all workers shut down. Its suspect_after is five
// heartbeat intervals. Returns the exit code: 0, or exit_code_of() the error.
inline int server_main(int argc, char** argv, const std::function<void()>& work) {
  if (argc != 5 && argc != 7) {
    std::cerr << "usage: server INIT_METHOD NAME RANK WORLD_SIZE [HEARTBEAT_MS DEAD_AFTER_MS]\n";
    return 2;
  }
  try {
    RpcBackendOptions options;
    options.init_method = argv[1];
    options.join_timeout = absl::Seconds(60);
    if (argc == 7) {
      options.heartbeat.interval = absl::Milliseconds(std::atoi(argv[5]));
      options.heartbeat.suspect_after = 5 * options.heartbeat.interval;
      options.heartbeat.dead_after = absl::Milliseconds(std::atoi(argv[6]));
    }
    init_rpc(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), options);
    try {
      work();
    } catch (const Error&) {
      try {
        shutdown(/*graceful=*/false);
      } catch (const Error&) {
        // Ignored: the first error is the cause.
      }
      throw;
    }
    shutdown();
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_code_of(error.status().code());
  }
  return 0;
}

}  // namespace gradwire::rpc
