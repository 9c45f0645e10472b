#pragma once

#include <memory>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// The case "connect" of the suite security.
std::unique_ptr<BenchProcess> make_gradwire_connect();

}  // namespace gradwire::bench
