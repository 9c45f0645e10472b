#pragma once

#include <vector>

namespace gradwire::bench {

// The cores on which the calling thread may run.
std::vector<int> allowed_cores();
// Makes the calling thread run only on these cores.
void pin_to(const std::vector<int>& cores);

}  // namespace gradwire::bench
