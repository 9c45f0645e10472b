#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/mesh/mesh_operation.h"
#include "gradwire/collectives/cpu/span.h"

// The algorithms of MeshGroup's collectives. The first of each pair has the fewest steps. The second has the
// least traffic, and works in pieces of `segment_bytes`.
namespace gradwire::collectives::cpu {

absl::Status broadcast_tree(MeshOperation& operation, Span data, int root);
absl::Status broadcast_chain(MeshOperation& operation, Span data, int root, std::size_t segment_bytes);

absl::Status reduce_tree(MeshOperation& operation, Span data, int root, const Reducer& reducer);
absl::Status reduce_chain(MeshOperation& operation, Span data, int root, const Reducer& reducer,
                          std::size_t segment_bytes);

absl::Status all_reduce_doubling(MeshOperation& operation, Span data, const Reducer& reducer);
absl::Status all_reduce_ring(MeshOperation& operation, Span data, const Reducer& reducer,
                             std::size_t segment_bytes);

absl::Status reduce_scatter_direct(MeshOperation& operation, Span output, absl::Span<const Span> inputs,
                                   const Reducer& reducer);
absl::Status reduce_scatter_ring(MeshOperation& operation, Span output, absl::Span<const Span> inputs,
                                 const Reducer& reducer, std::size_t segment_bytes);

}  // namespace gradwire::collectives::cpu
