#include "gradwire/collectives/device_mesh.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/subgroups/mesh_arrangement.h"

namespace gradwire::collectives {
namespace {

[[noreturn]] void refuse_mesh(const std::string& what) {
  throw Error(absl::InvalidArgumentError(absl::StrCat("device mesh: ", what)));
}

std::string quoted(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrCat("\"", absl::StrJoin(names, "\", \""), "\"");
}

void check_names(const std::vector<std::string>& names, std::size_t dimensions) {
  if (names.empty()) return;
  if (names.size() != dimensions) {
    refuse_mesh(
        absl::StrCat("got ", names.size(), " names for ", dimensions, " dimensions: ", quoted(names)));
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty()) refuse_mesh("a name of a dimension is empty; give each a name, or none at all");
    if (!seen.insert(name).second) refuse_mesh(absl::StrCat("two dimensions have the name \"", name, "\""));
  }
}

void check_arrangement(const MeshArrangement& grid, const ProcessGroup& group) {
  if (grid.shape.empty()) refuse_mesh("the shape is empty; expected at least one dimension");
  int64_t product = 1;
  for (const int length : grid.shape) {
    if (length <= 0)
      refuse_mesh(absl::StrCat("the shape has a length of ", length, "; expected positive lengths"));
    product = std::min<int64_t>(product * length, int64_t{1} << 31);
  }
  if (product != static_cast<int64_t>(grid.ranks.size())) {
    refuse_mesh(absl::StrCat("shape [", absl::StrJoin(grid.shape, ", "), "] has ", product,
                             " places, but there are ", grid.ranks.size(), " ranks"));
  }
  std::vector<int> sorted = grid.ranks;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse_mesh(absl::StrCat("rank ", *twice, " is in the grid twice"));
  for (const int rank : sorted) {
    if (std::binary_search(group.ranks().begin(), group.ranks().end(), rank)) continue;
    refuse_mesh(absl::StrCat("rank ", rank, " is not a member of group \"", group.name(),
                             "\", whose ranks are ", absl::StrJoin(group.ranks(), ", ")));
  }
}

// The group of these that this rank is a member of; else the first one, whose handle does nothing.
Group own_of(const std::vector<Group>& groups) {
  for (const Group& group : groups) {
    if (group->rank() >= 0) return group;
  }
  return groups.front();
}

}  // namespace

// The ranks and groups of a grid: of the first one, of a part of it, or of a flattened part. It does not
// refer to the Root, which owns the flattened ones.
struct DeviceMesh::Part {
  // The dimensions of the first grid that this one has.
  std::vector<int> dims;
  MeshArrangement grid;
  std::vector<std::string> names;
  std::optional<std::vector<int>> coordinate;
  std::vector<Group> groups;
};

// The properties that the first grid, which was not sliced from another one, shares with all its parts.
struct DeviceMesh::Root {
  Group parent;
  int rank = -1;
  NewGroupOptions options;
  // The first grid.
  Part whole;

  Mutex mutex;
  // The flattened grids by their names.
  std::map<std::string, std::shared_ptr<const Part>> flattened ABSL_GUARDED_BY(mutex);
};

std::shared_ptr<DeviceMesh::Root> DeviceMesh::make_root(std::vector<int> ranks, std::vector<int> shape,
                                                        std::vector<std::string> names, const Group& group) {
  auto root = std::make_shared<Root>();
  root->parent = group_or_world(group);
  Part& whole = root->whole;
  whole.grid = {std::move(shape), std::move(ranks)};
  whole.names = std::move(names);
  check_arrangement(whole.grid, *root->parent);
  check_names(whole.names, whole.grid.shape.size());
  whole.dims.resize(whole.grid.shape.size());
  std::iota(whole.dims.begin(), whole.dims.end(), 0);
  if (root->parent->rank() >= 0)
    root->rank = root->parent->ranks()[static_cast<std::size_t>(root->parent->rank())];
  whole.coordinate = whole.grid.coordinate_of(root->rank);
  return root;
}

DeviceMesh::DeviceMesh(std::shared_ptr<Root> root) : root_(std::move(root)), part_(root_, &root_->whole) {}

DeviceMesh::DeviceMesh(std::vector<int> ranks, std::vector<int> shape, std::vector<std::string> names,
                       const Group& group, const NewGroupOptions& options)
    : DeviceMesh(make_root(std::move(ranks), std::move(shape), std::move(names), group)) {
  root_->options = options;
  Part& whole = root_->whole;
  for (const int dim : whole.dims)
    whole.groups.push_back(own_of(root_->parent->new_groups(whole.grid.lists_along({dim}), options)));
}

DeviceMesh DeviceMesh::from_group(const Group& group, const std::string& name) {
  const Group in = group_or_world(group);
  return from_groups({in}, in->ranks(), {in->size()},
                     name.empty() ? std::vector<std::string>{} : std::vector<std::string>{name}, in);
}

DeviceMesh DeviceMesh::from_groups(std::vector<Group> groups, std::vector<int> ranks, std::vector<int> shape,
                                   std::vector<std::string> names, const Group& parent) {
  const std::shared_ptr<Root> root = make_root(std::move(ranks), std::move(shape), std::move(names), parent);
  Part& whole = root->whole;
  if (groups.size() != whole.dims.size()) {
    refuse_mesh(absl::StrCat("got ", groups.size(), " groups for ", whole.dims.size(), " dimensions"));
  }
  for (std::size_t dim = 0; dim < groups.size(); ++dim) {
    if (groups[dim] == nullptr)
      refuse_mesh(absl::StrCat("the group of dimension ", dim, " is a null pointer"));
    if (!whole.coordinate.has_value()) continue;
    std::vector<int> row = whole.grid.along({static_cast<int>(dim)}, *whole.coordinate).ranks;
    std::sort(row.begin(), row.end());
    if (row == groups[dim]->ranks()) continue;
    refuse_mesh(absl::StrCat("the group of dimension ", dim, " has the ranks ",
                             absl::StrJoin(groups[dim]->ranks(), ", "), ", but this rank's row has ",
                             absl::StrJoin(row, ", ")));
  }
  whole.groups = std::move(groups);
  return DeviceMesh(root);
}

const std::vector<int>& DeviceMesh::shape() const { return part_->grid.shape; }
const std::vector<std::string>& DeviceMesh::mesh_dim_names() const { return part_->names; }
const std::vector<int>& DeviceMesh::mesh() const { return part_->grid.ranks; }
int DeviceMesh::get_rank() const { return root_->rank; }
const std::optional<std::vector<int>>& DeviceMesh::get_coordinate() const { return part_->coordinate; }
const std::vector<Group>& DeviceMesh::get_all_groups() const { return part_->groups; }

int DeviceMesh::dimension(absl::string_view name) const {
  const auto found = std::find(part_->names.begin(), part_->names.end(), name);
  if (found != part_->names.end()) return static_cast<int>(found - part_->names.begin());
  refuse_mesh(absl::StrCat("no dimension has the name \"", name, "\"; the names are ", quoted(part_->names)));
}

int DeviceMesh::checked(int dim) const {
  if (dim >= 0 && dim < ndim()) return dim;
  refuse_mesh(absl::StrCat("there is no dimension ", dim, "; the grid has ", ndim(), " dimensions"));
}

int DeviceMesh::size(int dim) const { return part_->grid.shape[static_cast<std::size_t>(checked(dim))]; }

int DeviceMesh::get_local_rank(int dim) const {
  const auto place = static_cast<std::size_t>(checked(dim));
  return part_->coordinate.has_value() ? (*part_->coordinate)[place] : -1;
}

Group DeviceMesh::get_group(int dim) const { return part_->groups[static_cast<std::size_t>(checked(dim))]; }

Group DeviceMesh::get_group() const {
  if (ndim() == 1) return part_->groups.front();
  refuse_mesh(
      absl::StrCat("the grid has ", ndim(), " dimensions and one group for each; say which dimension"));
}

DeviceMesh DeviceMesh::operator[](const std::vector<std::string>& names) const {
  Root& root = *root_;
  if (names.empty()) refuse_mesh("no names of dimensions are given");
  if (names.size() == 1 &&
      std::find(part_->names.begin(), part_->names.end(), names[0]) == part_->names.end()) {
    MutexLock lock(root.mutex);
    const auto found = root.flattened.find(names[0]);
    if (found != root.flattened.end()) return DeviceMesh(root_, found->second);
  }
  auto part = std::make_shared<Part>();
  std::vector<int> own_dims;
  for (const std::string& name : names) {
    const int dim = dimension(name);
    if (!own_dims.empty() && dim <= own_dims.back()) {
      refuse_mesh(absl::StrCat("the dimensions ", quoted(names), " are not in the order of the grid, ",
                               quoted(part_->names)));
    }
    own_dims.push_back(dim);
    part->groups.push_back(part_->groups[static_cast<std::size_t>(dim)]);
  }
  // A flattened grid has one dimension, so a part of it is all of it.
  if (own_dims.size() == part_->grid.shape.size()) return *this;
  for (const int dim : own_dims) part->dims.push_back(part_->dims[static_cast<std::size_t>(dim)]);
  const std::vector<int> through = part_->coordinate.value_or(std::vector<int>(part_->grid.shape.size(), 0));
  part->grid = part_->grid.along(own_dims, through);
  part->names = names;
  part->coordinate = part->grid.coordinate_of(root.rank);
  return DeviceMesh(root_, std::move(part));
}

DeviceMesh DeviceMesh::flatten(std::string name) const {
  Root& root = *root_;
  if (ndim() == 1 && (name.empty() || part_->names == std::vector<std::string>{name})) return *this;
  if (name.empty()) name = absl::StrJoin(part_->names, "_");
  if (name.empty())
    refuse_mesh("the dimensions of the grid have no names; give a name for the flattened one");
  if (std::find(root.whole.names.begin(), root.whole.names.end(), name) != root.whole.names.end())
    refuse_mesh(absl::StrCat("the name \"", name, "\" is the name of a dimension of the grid"));
  {
    MutexLock lock(root.mutex);
    const auto found = root.flattened.find(name);
    if (found != root.flattened.end()) {
      if (found->second->dims == part_->dims) return DeviceMesh(root_, found->second);
      refuse_mesh(
          absl::StrCat("the name \"", name, "\" belongs to other dimensions, which were flattened before"));
    }
  }
  auto part = std::make_shared<Part>();
  part->dims = part_->dims;
  part->grid = {{size()}, part_->grid.ranks};
  part->names = {name};
  part->coordinate = part->grid.coordinate_of(root.rank);
  // Without the lock: other ranks are waited for.
  part->groups = {own_of(root.parent->new_groups(root.whole.grid.lists_along(part_->dims), root.options))};
  MutexLock lock(root.mutex);
  return DeviceMesh(root_, root.flattened.emplace(name, std::move(part)).first->second);
}

DeviceMesh init_device_mesh(std::vector<int> shape, std::vector<std::string> names, const Group& group,
                            const NewGroupOptions& options) {
  const Group in = group_or_world(group);
  int64_t product = 1;
  for (const int length : shape) product = std::min<int64_t>(product * std::max(length, 1), int64_t{1} << 31);
  if (product > in->size()) {
    refuse_mesh(absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] has ", product,
                             " places, but group \"", in->name(), "\" has only ", in->size(), " ranks"));
  }
  const auto begin = in->ranks().begin();
  return DeviceMesh(std::vector<int>(begin, begin + product), std::move(shape), std::move(names), in,
                    options);
}

}  // namespace gradwire::collectives
