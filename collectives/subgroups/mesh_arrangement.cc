#include "gradwire/collectives/subgroups/mesh_arrangement.h"

#include <algorithm>
#include <utility>

namespace gradwire::collectives {
namespace {

// Sets `coordinate` to the next one in the dimensions `dims`. Returns false after the last one, which becomes
// zeros.
bool advance(const std::vector<int>& shape, const std::vector<int>& dims, std::vector<int>& coordinate) {
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    if (++coordinate[*dim] < shape[*dim]) return true;
    coordinate[*dim] = 0;
  }
  return false;
}

}  // namespace

std::optional<std::vector<int>> MeshArrangement::coordinate_of(int rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return std::nullopt;
  std::vector<int> coordinate(shape.size());
  auto left = static_cast<int>(found - ranks.begin());
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    coordinate[dim] = left % shape[dim];
    left /= shape[dim];
  }
  return coordinate;
}

std::size_t MeshArrangement::place_of(const std::vector<int>& coordinate) const {
  std::size_t place = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    place = place * static_cast<std::size_t>(shape[dim]) + static_cast<std::size_t>(coordinate[dim]);
  }
  return place;
}

MeshArrangement MeshArrangement::along(const std::vector<int>& dims, std::vector<int> coordinate) const {
  MeshArrangement part;
  for (const int dim : dims) {
    part.shape.push_back(shape[dim]);
    coordinate[dim] = 0;
  }
  do {
    part.ranks.push_back(ranks[place_of(coordinate)]);
  } while (advance(shape, dims, coordinate));
  return part;
}

std::vector<std::vector<int>> MeshArrangement::lists_along(const std::vector<int>& dims) const {
  std::vector<int> others;
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) others.push_back(dim);
  }
  std::vector<std::vector<int>> lists;
  std::vector<int> coordinate(shape.size(), 0);
  do {
    lists.push_back(along(dims, coordinate).ranks);
  } while (advance(shape, others, coordinate));
  return lists;
}

}  // namespace gradwire::collectives
