#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::data_parallel {

// Assigns each parameter to a rank, so that the ranks get about the same number of elements: the largest
// parameters first, each to the rank with the fewest elements so far, the lowest one if there are several.
// `load`: the elements that each rank has already; it is updated. Returns the rank of each parameter. The
// result depends only on the arguments, so all ranks compute the same.
std::vector<int> partition_parameters(const std::vector<int64_t>& elements, std::vector<int64_t>& load);

}  // namespace gradwire::data_parallel
