#include "gradwire/rpc/mesh/mesh_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MeshShape shape(std::vector<MeshDimension> dimensions, std::size_t members) {
  return *MeshShape::create(std::move(dimensions), members);
}

std::string refusal(std::vector<MeshDimension> dimensions, std::size_t members) {
  const absl::Status status = MeshShape::create(std::move(dimensions), members).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(MeshShape, LastDimensionVariesFastest) {
  const MeshShape mesh = shape({{"host", 2}, {"numa", 3}, {"gpu", 4}}, 24);
  EXPECT_EQ(*mesh.position({0, 0, 3}), 3u);
  EXPECT_EQ(*mesh.position({0, 1, 0}), 4u);
  EXPECT_EQ(*mesh.position({1, 2, 3}), 23u);
}

TEST(MeshShape, WithoutDimensionsMembersFormOne) {
  EXPECT_THAT(shape({}, 5).dimensions(), ElementsAre(MeshDimension{"member", 5}));
}

TEST(MeshShape, IndexDropsItsDimension) {
  const MeshShape mesh = shape({{"host", 2}, {"numa", 2}, {"gpu", 3}}, 12);
  const MeshShape::Part middle = *mesh.slice("numa", 1);
  EXPECT_THAT(middle.positions, ElementsAre(3, 4, 5, 9, 10, 11));
  EXPECT_THAT(middle.shape.dimensions(), ElementsAre(MeshDimension{"host", 2}, MeshDimension{"gpu", 3}));
  EXPECT_EQ(middle.shape.members(), 6u);
  EXPECT_THAT(mesh.slice("gpu", 2)->positions, ElementsAre(2, 5, 8, 11));
  EXPECT_THAT(mesh.slice("host", 1)->positions, ElementsAre(6, 7, 8, 9, 10, 11));
}

TEST(MeshShape, RangeKeepsItsDimension) {
  const MeshShape::Part part = *shape({{"host", 2}, {"gpu", 4}}, 8).slice("gpu", 1, 3);
  EXPECT_THAT(part.positions, ElementsAre(1, 2, 5, 6));
  EXPECT_THAT(part.shape.dimensions(), ElementsAre(MeshDimension{"host", 2}, MeshDimension{"gpu", 2}));
}

TEST(MeshShape, SlicesOfAllDimensionsLeaveOneMemberWithoutDimensions) {
  const MeshShape::Part host = *shape({{"host", 2}, {"gpu", 2}}, 4).slice("host", 1);
  const MeshShape::Part one = *host.shape.slice("gpu", 0);
  EXPECT_THAT(one.positions, ElementsAre(0));
  EXPECT_EQ(one.shape.members(), 1u);
  EXPECT_EQ(*one.shape.position({}), 0u);
  EXPECT_THAT(one.shape.slice("gpu", 0).status().message(), HasSubstr("its dimensions are none"));
}

TEST(MeshShape, ErrorsNameTheDimensionAndWhatExists) {
  const MeshShape mesh = shape({{"host", 2}, {"gpu", 4}}, 8);
  const absl::Status unknown = mesh.slice("gpus", 0).status();
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_EQ(unknown.message(),
            "dimension \"gpus\" not found in the mesh; its dimensions are \"host\" (2), \"gpu\" (4)");
  EXPECT_EQ(mesh.slice("gpu", 4).status().message(),
            "dimension \"gpu\" has the indices 0 to 3, got the index 4");
  EXPECT_EQ(mesh.slice("gpu", -1).status().message(),
            "dimension \"gpu\" has the indices 0 to 3, got the index -1");
  for (const auto& [begin, end] : {std::pair(2, 2), std::pair(3, 1), std::pair(-1, 2), std::pair(0, 5)})
    EXPECT_TRUE(absl::IsInvalidArgument(mesh.slice("gpu", begin, end).status())) << begin << " " << end;
  EXPECT_EQ(mesh.slice("gpu", 0, 5).status().message(),
            "dimension \"gpu\" has the indices 0 to 3, got the range from 0 to 5 (without the end)");
  EXPECT_EQ(mesh.position({1}).status().message(),
            "expected one index for each dimension of the mesh, \"host\" (2), \"gpu\" (4), got 1 indices");
  EXPECT_THAT(mesh.position({2, 0}).status().message(), HasSubstr("dimension \"host\""));
  EXPECT_THAT(mesh.position({0, -1}).status().message(), HasSubstr("dimension \"gpu\""));
}

TEST(MeshShape, WrongDimensionsAreRefused) {
  EXPECT_THAT(refusal({}, 0), HasSubstr("at least one member"));
  EXPECT_THAT(refusal({{"host", 2}, {"gpu", 3}}, 8),
              HasSubstr("\"host\" (2), \"gpu\" (3) must multiply to the number of members, 8"));
  EXPECT_THAT(refusal({{"gpu", 2}, {"gpu", 2}}, 4), HasSubstr("have the name \"gpu\""));
  EXPECT_THAT(refusal({{"host", 2}, {"", 2}}, 4), HasSubstr("dimension 1 of the mesh has no name"));
  EXPECT_THAT(refusal({{"host", 0}}, 1), HasSubstr("\"host\" must be positive, got 0"));
  EXPECT_THAT(refusal({{"host", -4}, {"gpu", -1}}, 4), HasSubstr("must be positive, got -4"));
}

TEST(MeshShape, ProductThatOverflowsIsRefused) {
  const int64_t half = int64_t{1} << 32;
  EXPECT_THAT(refusal({{"a", half}, {"b", half}}, 1), HasSubstr("must multiply"));
  EXPECT_THAT(refusal({{"a", 2}, {"b", std::numeric_limits<int64_t>::max()}, {"c", 2}}, 4),
              HasSubstr("must multiply"));
}

}  // namespace
}  // namespace gradwire::rpc
