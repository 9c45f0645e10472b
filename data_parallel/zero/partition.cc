#include "gradwire/data_parallel/zero/partition.h"

#include <algorithm>
#include <numeric>

namespace gradwire::data_parallel {

std::vector<int> partition_parameters(const std::vector<int64_t>& elements, std::vector<int64_t>& load) {
  std::vector<std::size_t> order(elements.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return elements[a] > elements[b]; });
  std::vector<int> owners(elements.size());
  for (std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += elements[i];
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

}  // namespace gradwire::data_parallel
