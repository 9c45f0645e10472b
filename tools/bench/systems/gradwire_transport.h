#pragma once

#include <memory>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// Measures a transport without agents, calls or tensors. The case "ping" is a round trip of a header of eight
// bytes. The case "send" sends a buffer and gets a header back.
std::unique_ptr<BenchProcess> make_gradwire_transport();

}  // namespace gradwire::bench
