#pragma once

#include <memory>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// Measures a transport without agents, calls or tensors. The case "ping" is a round trip of a header of eight
// bytes. The case "send" sends a buffer and gets a header back.
std::unique_ptr<BenchProcess> make_gradwire_transport();

// Measures a server with many connections over tcp: the cases "clients_N".
std::unique_ptr<BenchProcess> make_gradwire_clients();

}  // namespace gradwire::bench
