#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {

// Ranks in a grid, with a group for each row of each dimension, as torch.distributed's DeviceMesh. The ranks
// of a row of a dimension differ in their place in this dimension only: in a grid of the shape {2, 4} ranks 0
// and 4 are a row of dimension 0, and ranks 0 to 3 are a row of dimension 1. A dimension is named by its
// number, or by its name if it has one. A DeviceMesh is a handle: copies and parts
// refer to one grid. Thread-safe. The handles keep the groups, and the group in which they were made.
// Destroying that group ends them all.
//
//   DeviceMesh mesh = init_device_mesh({2, 2, 2}, {"dp", "cp", "tp"});   // 8 ranks
//   all_reduce(gradient, ReduceOp::kAvg, mesh.get_group("dp"));          // over the 2 ranks of this row
//   DeviceMesh both = mesh[{"dp", "cp"}].flatten("dp_cp");               // a row of 4 ranks
//
// On a rank that is not in the grid the groups are handles that do nothing (rank() == -1).
//
// Errors, thrown as Error: InvalidArgument for an unknown dimension and for lists that do not fit, before
// anything is sent; the errors of ProcessGroup::new_groups.
class DeviceMesh {
 public:
  // Makes a grid of this shape in `group` (nullptr: the world), and its groups. `ranks`: the ranks of the
  // world in the grid, row-major; they are different members of `group`. Every member of `group` must call it
  // with the same arguments, in the same order as other functions that make groups.
  DeviceMesh(std::vector<int> ranks, std::vector<int> shape, std::vector<std::string> names = {},
             const Group& group = nullptr, const NewGroupOptions& options = {});
  // A grid of one dimension with the members of `group`. Makes no groups.
  static DeviceMesh from_group(const Group& group, const std::string& name = "");
  // A grid whose groups exist already: groups[i] is the group of this rank's row of dimension i. Makes no
  // groups. `parent`: the group in which flatten() makes groups; nullptr is the world.
  static DeviceMesh from_groups(std::vector<Group> groups, std::vector<int> ranks, std::vector<int> shape,
                                std::vector<std::string> names = {}, const Group& parent = nullptr);

  // Number of dimensions.
  int ndim() const { return static_cast<int>(shape().size()); }
  // Number of ranks in each dimension.
  const std::vector<int>& shape() const;
  // The names of the dimensions; empty if they have none.
  const std::vector<std::string>& mesh_dim_names() const;
  // The ranks of the world in the grid, row-major.
  const std::vector<int>& mesh() const;
  // Number of ranks in the grid.
  int size() const { return static_cast<int>(mesh().size()); }
  // Number of ranks in a dimension.
  int size(int dim) const;
  // Number of ranks in the dimension with this name.
  int size(absl::string_view name) const { return size(dimension(name)); }

  // This process's rank in the world.
  int get_rank() const;
  // This rank's place in each dimension; nullopt if it is not in the grid.
  const std::optional<std::vector<int>>& get_coordinate() const;
  // This rank's place in a dimension; -1 if it is not in the grid.
  int get_local_rank(int dim) const;
  // This rank's place in the dimension with this name; -1 if it is not in the grid.
  int get_local_rank(absl::string_view name) const { return get_local_rank(dimension(name)); }
  // The group of this rank's row of a dimension. Its ranks are in ascending order of their ranks in the
  // world.
  Group get_group(int dim) const;
  // The group of this rank's row of the dimension with this name.
  Group get_group(absl::string_view name) const { return get_group(dimension(name)); }
  // The group of a grid with one dimension. InvalidArgument if it has more.
  Group get_group() const;
  // The groups of all dimensions, in their order.
  const std::vector<Group>& get_all_groups() const;

  // The part of the grid with these dimensions, through this rank. `names` are in the order of the grid. A
  // name that flatten() has given may also be used, alone. Makes no groups.
  DeviceMesh operator[](const std::vector<std::string>& names) const;
  // As above. Without this overload, mesh[{"dp", "cp"}] would be ambiguous: two literals are also the two
  // ends of a std::string.
  DeviceMesh operator[](std::initializer_list<const char*> names) const {
    return (*this)[std::vector<std::string>(names.begin(), names.end())];
  }
  // The part with one dimension.
  DeviceMesh operator[](const char* name) const { return (*this)[std::vector<std::string>{name}]; }
  // The part with one dimension.
  DeviceMesh operator[](const std::string& name) const { return (*this)[std::vector<std::string>{name}]; }

  // The same ranks in one dimension, with a group of their own. Every member of the group that the first grid
  // was made in must call it for the same dimensions. `name`: empty, or not used in the first grid; the
  // default is the names of the dimensions, joined by "_". Afterwards the first grid knows the name. Calling
  // it again returns the same grid.
  DeviceMesh flatten(std::string name = "") const;

 private:
  struct Root;
  struct Part;
  DeviceMesh(std::shared_ptr<Root> root, std::shared_ptr<const Part> part)
      : root_(std::move(root)), part_(std::move(part)) {}
  explicit DeviceMesh(std::shared_ptr<Root> root);
  static std::shared_ptr<Root> make_root(std::vector<int> ranks, std::vector<int> shape,
                                         std::vector<std::string> names, const Group& group);
  int dimension(absl::string_view name) const;
  int checked(int dim) const;

  std::shared_ptr<Root> root_;
  std::shared_ptr<const Part> part_;
};

// Makes a grid with the ranks 0, 1, ... of `group` (nullptr: the world) in row-major order. The product of
// the shape may be smaller than the group: then its last ranks are not in the grid.
DeviceMesh init_device_mesh(std::vector<int> shape, std::vector<std::string> names = {},
                            const Group& group = nullptr, const NewGroupOptions& options = {});

}  // namespace gradwire::collectives
