#include "gradwire/collectives/subgroups/mesh_arrangement.h"

#include <gtest/gtest.h>

#include <numeric>

namespace gradwire::collectives {
namespace {

using Lists = std::vector<std::vector<int>>;

MeshArrangement grid(std::vector<int> shape) {
  MeshArrangement made{std::move(shape), {}};
  int size = 1;
  for (const int length : made.shape) size *= length;
  made.ranks.resize(static_cast<std::size_t>(size));
  std::iota(made.ranks.begin(), made.ranks.end(), 0);
  return made;
}

TEST(MeshArrangement, CoordinatesAreRowMajor) {
  const MeshArrangement mesh = grid({2, 3, 4});
  EXPECT_EQ(mesh.coordinate_of(0), std::vector<int>({0, 0, 0}));
  EXPECT_EQ(mesh.coordinate_of(23), std::vector<int>({1, 2, 3}));
  EXPECT_EQ(mesh.coordinate_of(17), std::vector<int>({1, 1, 1}));
  EXPECT_EQ(mesh.coordinate_of(24), std::nullopt);
  for (const int rank : mesh.ranks) EXPECT_EQ(mesh.place_of(*mesh.coordinate_of(rank)), rank);
}

TEST(MeshArrangement, RowsOfADimension) {
  const MeshArrangement mesh = grid({2, 2, 2});
  EXPECT_EQ(mesh.lists_along({0}), Lists({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.lists_along({1}), Lists({{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.lists_along({2}), Lists({{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.lists_along({0, 2}), Lists({{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(mesh.lists_along({0, 1, 2}), Lists({{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(MeshArrangement, PartThroughACoordinate) {
  const MeshArrangement part = grid({2, 3, 4}).along({0, 2}, {1, 1, 3});
  EXPECT_EQ(part.shape, std::vector<int>({2, 4}));
  EXPECT_EQ(part.ranks, std::vector<int>({4, 5, 6, 7, 16, 17, 18, 19}));
  const MeshArrangement turned{{2, 2}, {3, 1, 2, 0}};
  EXPECT_EQ(turned.lists_along({0}), Lists({{3, 2}, {1, 0}}));
  EXPECT_EQ(turned.coordinate_of(2), std::vector<int>({1, 0}));
}

TEST(MeshArrangement, DimensionsOfLengthOne) {
  const MeshArrangement mesh = grid({1, 3, 1});
  EXPECT_EQ(mesh.lists_along({0}), Lists({{0}, {1}, {2}}));
  EXPECT_EQ(mesh.lists_along({1}), Lists({{0, 1, 2}}));
}

}  // namespace
}  // namespace gradwire::collectives
