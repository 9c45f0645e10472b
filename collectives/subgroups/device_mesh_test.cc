#include "gradwire/collectives/device_mesh.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "gradwire/collectives/functions.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/group_checks.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;
using testing::Ranks;
using testing::refuses;
using testing::sum_over;
using Names = std::vector<std::string>;
using Numbers = std::vector<int>;

[[maybe_unused]] const bool meshes_use_local_backend = (testing::use_local_backend(), true);

TEST(DeviceMesh, ThreeDimensionsOfTwo) {
  Ranks ranks(8);
  ranks.run([](const Group& world) {
    const int rank = world->rank();
    const DeviceMesh mesh = init_device_mesh({2, 2, 2}, {"dp", "cp", "tp"}, world);
    EXPECT_EQ(mesh.ndim(), 3);
    EXPECT_EQ(mesh.shape(), Numbers({2, 2, 2}));
    EXPECT_EQ(mesh.size(), 8);
    EXPECT_EQ(mesh.size("cp"), 2);
    EXPECT_EQ(mesh.mesh(), Numbers({0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(mesh.mesh_dim_names(), Names({"dp", "cp", "tp"}));
    EXPECT_EQ(mesh.get_rank(), rank);
    EXPECT_EQ(mesh.get_coordinate(), Numbers({rank / 4, rank / 2 % 2, rank % 2}));
    EXPECT_EQ(mesh.get_local_rank("dp"), rank / 4);
    EXPECT_EQ(mesh.get_local_rank(2), rank % 2);
    EXPECT_EQ(mesh.get_all_groups().size(), 3);
    EXPECT_EQ(sum_over(mesh.get_group("dp"), rank), 2 * (rank % 4) + 4);
    EXPECT_EQ(sum_over(mesh.get_group("cp"), rank), 2 * (rank - rank / 2 % 2 * 2) + 2);
    EXPECT_EQ(sum_over(mesh.get_group(2), rank), 2 * (rank / 2 * 2) + 1);
  });
}

TEST(DeviceMesh, PartsByName) {
  Ranks ranks(8);
  ranks.run([](const Group& world) {
    const int rank = world->rank();
    const DeviceMesh mesh = init_device_mesh({2, 2, 2}, {"dp", "cp", "tp"}, world);
    const DeviceMesh tp = mesh["tp"];
    EXPECT_EQ(tp.ndim(), 1);
    EXPECT_EQ(tp.get_group(), mesh.get_group("tp"));
    EXPECT_EQ(tp.mesh(), Numbers({rank / 2 * 2, rank / 2 * 2 + 1}));
    EXPECT_EQ(tp.get_local_rank(0), rank % 2);
    const DeviceMesh both = mesh[{"dp", "tp"}];
    const int base = rank / 2 % 2 * 2;
    EXPECT_EQ(both.shape(), Numbers({2, 2}));
    EXPECT_EQ(both.mesh(), Numbers({base, base + 1, base + 4, base + 5}));
    EXPECT_EQ(both.get_coordinate(), Numbers({rank / 4, rank % 2}));
    EXPECT_EQ(both.get_group("dp"), mesh.get_group("dp"));
    EXPECT_EQ(both["tp"].get_group(), mesh.get_group("tp"));
    EXPECT_EQ((mesh[{"dp", "cp", "tp"}].size()), 8);
    EXPECT_EQ(world->new_group()->name(), "world/group4");  // The parts have made no groups.
  });
}

// The example of docs/collectives.md and of the class comment.
TEST(DeviceMesh, ExampleOfTheDocuments) {
  Ranks ranks(8);
  ranks.run([](const Group& world) {
    const DeviceMesh mesh = init_device_mesh({2, 2, 2}, {"dp", "cp", "tp"}, world);
    const at::Tensor gradient = at::full({2}, 1.0 * world->rank());
    all_reduce(gradient, ReduceOp::kAvg, mesh.get_group("dp"));
    EXPECT_TRUE(gradient.equal(at::full({2}, world->rank() % 4 + 2.0)));
    const int place = mesh.get_local_rank("tp");
    EXPECT_EQ(place, world->rank() % 2);
    const std::vector<int> where = *mesh.get_coordinate();
    EXPECT_EQ(where.back(), place);
    const DeviceMesh plane = mesh[{"dp", "tp"}];
    EXPECT_EQ(plane.shape(), Numbers({2, 2}));
    const DeviceMesh flat = mesh[{"dp", "cp"}].flatten("dp_cp");
    EXPECT_EQ(flat.size(), 4);
    const at::Tensor loss = at::full({}, 1.0 * world->rank());
    all_reduce(loss, ReduceOp::kAvg, mesh["dp_cp"].get_group());
    EXPECT_EQ(loss.item<double>(), 3 + world->rank() % 2);
    EXPECT_EQ(mesh[{"tp"}].get_group(), mesh.get_group("tp"));
    const std::string name = "tp";
    EXPECT_EQ((mesh[{"dp", name}].mesh()), plane.mesh());
  });
}

TEST(DeviceMesh, LastHandleLetsGoOfTheGroups) {
  Ranks ranks(4);
  ranks.run([](const Group& world) {
    std::vector<std::weak_ptr<ProcessGroup>> groups;
    {
      Group parent = world->new_group();
      groups.push_back(parent);
      const DeviceMesh mesh = init_device_mesh({2, 2}, {"a", "b"}, parent);
      parent.reset();
      const DeviceMesh flat = mesh.flatten();
      groups.insert(groups.end(), {mesh.get_group("a"), mesh.get_group("b"), flat.get_group()});
      // A part keeps the whole grid.
      const DeviceMesh part = init_device_mesh({4}, {"c"}, groups[0].lock())["c"];
      EXPECT_EQ(sum_over(part.get_group(), 1), 4);
    }
    for (const std::weak_ptr<ProcessGroup>& group : groups) EXPECT_TRUE(group.expired());
  });
}

TEST(DeviceMesh, FlattenedPart) {
  Ranks ranks(8);
  ranks.run([](const Group& world) {
    const int rank = world->rank();
    const DeviceMesh mesh = init_device_mesh({2, 2, 2}, {"dp", "cp", "tp"}, world);
    const DeviceMesh flat = mesh[{"dp", "cp"}].flatten();
    EXPECT_EQ(flat.mesh_dim_names(), Names({"dp_cp"}));
    EXPECT_EQ(flat.shape(), Numbers({4}));
    EXPECT_EQ(flat.get_local_rank("dp_cp"), rank / 2);
    EXPECT_EQ(flat.get_group()->ranks(), Numbers({rank % 2, rank % 2 + 2, rank % 2 + 4, rank % 2 + 6}));
    EXPECT_EQ(sum_over(flat.get_group(), rank), 12 + 4 * (rank % 2));
    // The first grid knows the name, and the same call makes no second group.
    EXPECT_EQ(mesh["dp_cp"].get_group(), flat.get_group());
    EXPECT_EQ((mesh[{"dp", "cp"}].flatten("dp_cp").get_group()), flat.get_group());
    EXPECT_EQ(flat.flatten().get_group(), flat.get_group());
    EXPECT_EQ(mesh["tp"].flatten().get_group(), mesh.get_group("tp"));
    EXPECT_EQ(mesh.flatten("all").size(), 8);
    refuses([&] { mesh[{"cp", "tp"}].flatten("dp_cp"); }, "belongs to other dimensions");
    refuses([&] { mesh[{"cp", "tp"}].flatten("dp"); }, "is the name of a dimension");
    EXPECT_EQ(sum_over(mesh["all"].get_group(), 1), 8);
  });
}

TEST(DeviceMesh, RanksThatAreNotInTheGrid) {
  Ranks ranks(5);
  ranks.run([](const Group& world) {
    const DeviceMesh mesh = init_device_mesh({2, 2}, {"dp", "tp"}, world);
    const DeviceMesh flat = mesh.flatten();
    if (world->rank() < 4) {
      EXPECT_EQ(sum_over(flat.get_group(), world->rank()), 6);
      return;
    }
    EXPECT_EQ(mesh.get_coordinate(), std::nullopt);
    EXPECT_EQ(mesh.get_local_rank("dp"), -1);
    EXPECT_EQ(mesh.get_group("dp")->rank(), -1);
    EXPECT_EQ(mesh["tp"].get_coordinate(), std::nullopt);
    EXPECT_EQ(flat.get_group()->rank(), -1);
  });
}

TEST(DeviceMesh, RanksInAnyArrangementAndInASmallerGroup) {
  Ranks ranks(5);
  ranks.run([](const Group& world) {
    const Group four = world->new_group({1, 2, 3, 4});
    if (four->rank() < 0) return;
    const DeviceMesh mesh({4, 2, 1, 3}, {2, 2}, {}, four);
    EXPECT_EQ(mesh.get_coordinate(),
              Numbers({world->rank() % 2, world->rank() % 4 == 0 || world->rank() == 1 ? 0 : 1}));
    EXPECT_EQ(sum_over(mesh.get_group(0), world->rank()), 5);
    EXPECT_EQ(sum_over(mesh.get_group(1), world->rank()), world->rank() % 2 == 0 ? 6 : 4);
    EXPECT_EQ(init_device_mesh({4}, {"x"}, four)["x"].mesh(), Numbers({1, 2, 3, 4}));
  });
}

TEST(DeviceMesh, GroupsThatExist) {
  Ranks ranks(4);
  ranks.run([](const Group& world) {
    const DeviceMesh line = DeviceMesh::from_group(world, "dp");
    EXPECT_EQ(line.get_group("dp"), world);
    EXPECT_EQ(line.get_local_rank(0), world->rank());
    const DeviceMesh made = init_device_mesh({2, 2}, {}, world);
    const DeviceMesh mesh =
        DeviceMesh::from_groups(made.get_all_groups(), {0, 1, 2, 3}, {2, 2}, {"a", "b"}, world);
    EXPECT_EQ(mesh["b"].get_group(), made.get_group(1));
    EXPECT_EQ(sum_over(mesh.flatten("ab").get_group(), 1), 4);
    refuses([&] { DeviceMesh::from_groups({world}, {0, 1, 2, 3}, {2, 2}, {}, world); }, "got 1 groups for 2");
    refuses(
        [&] {
          DeviceMesh::from_groups({world, world}, {0, 1, 2, 3}, {2, 2}, {}, world);
        },
        "the group of dimension 0 has the ranks 0, 1, 2, 3, but this rank's row has");
    refuses(
        [&] {
          DeviceMesh::from_groups({world, nullptr}, {0, 1, 2, 3}, {4, 1}, {}, world);
        },
        "the group of dimension 1 is a null pointer");
  });
}

TEST(DeviceMesh, InvalidGridsAreRefusedBeforeAnythingIsSent) {
  Ranks ranks(4);
  const Group& world = ranks[0];
  refuses(
      [&] {
        init_device_mesh({2, 4}, {}, world);
      },
      "shape [2, 4] has 8 places, but group \"world\" has only 4");
  refuses([&] { init_device_mesh({1 << 30, 1 << 30}, {}, world); }, "places");
  refuses([&] { init_device_mesh({}, {}, world); }, "the shape is empty");
  refuses([&] { init_device_mesh({2, 0}, {}, world); }, "a length of 0");
  refuses([&] { init_device_mesh({2, -2}, {}, world); }, "a length of -2");
  refuses([&] { init_device_mesh({2, 2}, {"dp"}, world); }, "got 1 names for 2 dimensions: \"dp\"");
  refuses([&] { init_device_mesh({2, 2}, {"dp", "dp"}, world); }, "two dimensions have the name \"dp\"");
  refuses([&] { init_device_mesh({2, 2}, {"dp", ""}, world); }, "is empty");
  refuses([&] { DeviceMesh({0, 1, 1, 2}, {2, 2}, {}, world); }, "rank 1 is in the grid twice");
  refuses([&] { DeviceMesh({0, 1, 2, 9}, {2, 2}, {}, world); }, "rank 9 is not a member of group \"world\"");
  refuses([&] { DeviceMesh({0, 1, 2}, {2, 2}, {}, world); }, "has 4 places, but there are 3 ranks");
}

TEST(DeviceMesh, UnknownDimensionsAreRefused) {
  Ranks ranks(4);
  ranks.run([](const Group& world) {
    const DeviceMesh mesh = init_device_mesh({2, 2}, {"dp", "tp"}, world);
    refuses([&] { mesh.get_group(); }, "has 2 dimensions and one group for each");
    refuses([&] { mesh.get_group(2); }, "there is no dimension 2; the grid has 2 dimensions");
    refuses([&] { mesh.size(-1); }, "there is no dimension -1");
    refuses([&] { mesh.get_local_rank("pp"); },
            "no dimension has the name \"pp\"; the names are \"dp\", \"tp\"");
    refuses([&] { (void)mesh["pp"]; }, "no dimension has the name \"pp\"");
    refuses([&] { (void)mesh[{"tp", "dp"}]; }, "are not in the order of the grid");
    refuses([&] { (void)mesh[Names{}]; }, "no names");
    refuses([&] { init_device_mesh({4}, {}, world)["dp"]; }, "the names are none");
    refuses([&] { init_device_mesh({2, 2}, {}, world).flatten(); }, "have no names");
  });
}

TEST(DeviceMesh, RankWithAnotherShapeIsNamed) {
  Ranks ranks(4);
  const auto results = ranks.results([](const Group& world) {
    init_device_mesh(world->rank() == 3 ? Numbers{4, 1} : Numbers{2, 2}, {}, world);
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
    EXPECT_THAT(result.ToString(), HasSubstr("rank 3 asks for ranks 0, 1, 2, 3"));
  }
}

}  // namespace
}  // namespace gradwire::collectives
