#include "gradwire/rpc/mesh/mesh_shape.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

absl::Status out_of_range(const MeshDimension& dimension, absl::string_view what, const std::string& got) {
  return absl::InvalidArgumentError(absl::StrCat("dimension \"", dimension.name, "\" has the indices 0 to ",
                                                 dimension.size - 1, ", got the ", what, " ", got));
}

}  // namespace

absl::StatusOr<MeshShape> MeshShape::create(std::vector<MeshDimension> dimensions, std::size_t members) {
  if (members == 0) return absl::InvalidArgumentError("a mesh must have at least one member, got none");
  if (dimensions.empty()) dimensions.push_back({"member", static_cast<int64_t>(members)});
  MeshShape shape;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const MeshDimension& dimension = dimensions[i];
    if (dimension.name.empty())
      return absl::InvalidArgumentError(absl::StrCat("dimension ", i, " of the mesh has no name"));
    for (std::size_t j = 0; j < i; ++j) {
      if (dimensions[j].name == dimension.name) {
        return absl::InvalidArgumentError(
            absl::StrCat("two dimensions of the mesh have the name \"", dimension.name, "\""));
      }
    }
    if (dimension.size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("the size of dimension \"", dimension.name,
                                                     "\" must be positive, got ", dimension.size));
    }
    // The product of a valid shape is the number of members. So a larger one ends the check, and cannot
    // overflow.
    const auto size = static_cast<std::size_t>(dimension.size);
    shape.members_ =
        size > members / shape.members_ ? std::numeric_limits<std::size_t>::max() : shape.members_ * size;
    if (shape.members_ > members) break;
  }
  shape.dimensions_ = std::move(dimensions);
  if (shape.members_ != members) {
    return absl::InvalidArgumentError(absl::StrCat("the sizes of the dimensions ", shape.describe(),
                                                   " must multiply to the number of members, ", members));
  }
  return shape;
}

std::string MeshShape::describe() const {
  if (dimensions_.empty()) return "none";
  return absl::StrJoin(dimensions_, ", ", [](std::string* out, const MeshDimension& dimension) {
    absl::StrAppend(out, "\"", dimension.name, "\" (", dimension.size, ")");
  });
}

absl::StatusOr<std::size_t> MeshShape::position(absl::Span<const int64_t> indices) const {
  if (indices.size() != dimensions_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("expected one index for each dimension of the mesh, ",
                                                   describe(), ", got ", indices.size(), " indices"));
  }
  std::size_t position = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const MeshDimension& dimension = dimensions_[i];
    if (indices[i] < 0 || indices[i] >= dimension.size)
      return out_of_range(dimension, "index", absl::StrCat(indices[i]));
    position = position * static_cast<std::size_t>(dimension.size) + static_cast<std::size_t>(indices[i]);
  }
  return position;
}

absl::StatusOr<std::size_t> MeshShape::find(absl::string_view dimension) const {
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == dimension) return i;
  }
  return absl::NotFoundError(
      absl::StrCat("dimension \"", dimension, "\" not found in the mesh; its dimensions are ", describe()));
}

absl::StatusOr<MeshShape::Part> MeshShape::slice(absl::string_view dimension, int64_t index) const {
  GRADWIRE_ASSIGN_OR_RETURN(const std::size_t place, find(dimension));
  if (index < 0 || index >= dimensions_[place].size)
    return out_of_range(dimensions_[place], "index", absl::StrCat(index));
  return cut(place, index, index + 1, /*drops=*/true);
}

absl::StatusOr<MeshShape::Part> MeshShape::slice(absl::string_view dimension, int64_t begin,
                                                 int64_t end) const {
  GRADWIRE_ASSIGN_OR_RETURN(const std::size_t place, find(dimension));
  if (begin < 0 || end > dimensions_[place].size || begin >= end) {
    return out_of_range(dimensions_[place], "range",
                        absl::StrCat("from ", begin, " to ", end, " (without the end)"));
  }
  return cut(place, begin, end, /*drops=*/false);
}

// A position is (outer * size + index) * inner_size + inner, with the index in this dimension.
MeshShape::Part MeshShape::cut(std::size_t dimension, int64_t begin, int64_t end, bool drops) const {
  std::size_t inner_size = 1;
  for (std::size_t i = dimension + 1; i < dimensions_.size(); ++i)
    inner_size *= static_cast<std::size_t>(dimensions_[i].size);
  const auto size = static_cast<std::size_t>(dimensions_[dimension].size);
  Part part;
  for (std::size_t outer = 0; outer < members_ / (size * inner_size); ++outer) {
    for (auto index = static_cast<std::size_t>(begin); index < static_cast<std::size_t>(end); ++index) {
      for (std::size_t inner = 0; inner < inner_size; ++inner)
        part.positions.push_back((outer * size + index) * inner_size + inner);
    }
  }
  part.shape.dimensions_ = dimensions_;
  part.shape.members_ = part.positions.size();
  if (drops) {
    part.shape.dimensions_.erase(part.shape.dimensions_.begin() + static_cast<std::ptrdiff_t>(dimension));
  } else {
    part.shape.dimensions_[dimension].size = end - begin;
  }
  return part;
}

}  // namespace gradwire::rpc
