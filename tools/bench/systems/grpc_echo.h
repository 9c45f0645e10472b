#pragma once

#include <memory>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// gRPC over TCP, with a synchronous server, blocking unary calls (asynchronous ones in inflight_add2) and
// insecure credentials.
std::unique_ptr<BenchProcess> make_grpc();

}  // namespace gradwire::bench
