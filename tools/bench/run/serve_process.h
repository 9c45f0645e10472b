#pragma once

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// The main function of a bench process. Executes the orders that arrive on `fd` until the coordinator sends
// kQuit or closes its end. Then it ends the program without destructors, because one process alone cannot
// shut down torch's agent, and nothing is measured any more.
[[noreturn]] void serve_process(int fd, BenchProcess& process);

}  // namespace gradwire::bench
