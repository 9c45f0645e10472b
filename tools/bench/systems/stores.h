#pragma once

#include <memory>

#include "gradwire/tools/bench/run/bench_process.h"

// The systems of the suite store: member 0 hosts the store; the last member sets and gets a key.
namespace gradwire::bench {

std::unique_ptr<BenchProcess> make_gradwire_store();
std::unique_ptr<BenchProcess> make_torch_store();

}  // namespace gradwire::bench
