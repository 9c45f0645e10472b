#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace gradwire::collectives {

// Ranks in a grid of any number of dimensions. Coordinates and the list of ranks are row-major: the last
// coordinate changes fastest. A value without threads; arguments have been checked.
struct MeshArrangement {
  std::vector<int> shape;
  // As many as the product of `shape`.
  std::vector<int> ranks;

  // The coordinate of a rank; nullopt if the rank is not in the grid.
  std::optional<std::vector<int>> coordinate_of(int rank) const;
  // The place in `ranks` of a coordinate.
  std::size_t place_of(const std::vector<int>& coordinate) const;
  // The part of the grid along the dimensions `dims`, through this coordinate.
  MeshArrangement along(const std::vector<int>& dims, std::vector<int> coordinate) const;
  // The ranks of along(dims, c) for all different parts, in the order of their first coordinates. Each rank
  // is in one list.
  std::vector<std::vector<int>> lists_along(const std::vector<int>& dims) const;
};

}  // namespace gradwire::collectives
