#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gradwire::rpc {

// A named dimension of a Mesh.
struct MeshDimension {
  std::string name;
  int64_t size = 0;  // At least 1.

  // Whether both have the same name and size.
  friend bool operator==(const MeshDimension&, const MeshDimension&) = default;
};

// The arrangement of the members of a mesh. Positions count the members in row-major order: the last
// dimension varies fastest. Immutable.
class MeshShape {
 public:
  // A part of a shape, and the positions of its members in the shape that it was cut from.
  struct Part;

  // Arranges `members` members. Without dimensions they form one, "member". InvalidArgument if there are no
  // members, if the product of the sizes differs from `members`, if a size is not positive, or if a name is
  // empty or occurs twice.
  static absl::StatusOr<MeshShape> create(std::vector<MeshDimension> dimensions, std::size_t members);

  const std::vector<MeshDimension>& dimensions() const { return dimensions_; }
  std::size_t members() const { return members_; }

  // The position of the member with one index for each dimension. InvalidArgument for the wrong number of
  // indices, or an index out of range.
  absl::StatusOr<std::size_t> position(absl::Span<const int64_t> indices) const;
  // The members with this index in the dimension, which the part does not have any more. NotFound for an
  // unknown dimension, InvalidArgument for an index out of range.
  absl::StatusOr<Part> slice(absl::string_view dimension, int64_t index) const;
  // The members with an index of at least `begin` and less than `end`. Errors as above; the range must not be
  // empty.
  absl::StatusOr<Part> slice(absl::string_view dimension, int64_t begin, int64_t end) const;

  // `"host" (2), "gpu" (4)`; "none" without dimensions.
  std::string describe() const;

 private:
  absl::StatusOr<std::size_t> find(absl::string_view dimension) const;
  Part cut(std::size_t dimension, int64_t begin, int64_t end, bool drops) const;

  std::vector<MeshDimension> dimensions_;
  std::size_t members_ = 1;
};

struct MeshShape::Part {
  MeshShape shape;
  std::vector<std::size_t> positions;
};

}  // namespace gradwire::rpc
