#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_operation.h"

// The algorithms of P2pGroup's collectives. The first of each pair has the fewest steps. The second has the
// least traffic, and works in pieces of `segment_bytes`.
namespace gradwire::collectives::cpu {

absl::Status broadcast_tree(P2pOperation& operation, Span data, int root);
absl::Status broadcast_chain(P2pOperation& operation, Span data, int root, std::size_t segment_bytes);

absl::Status reduce_tree(P2pOperation& operation, Span data, int root, const Reducer& reducer);
absl::Status reduce_chain(P2pOperation& operation, Span data, int root, const Reducer& reducer,
                          std::size_t segment_bytes);

absl::Status all_reduce_doubling(P2pOperation& operation, Span data, const Reducer& reducer);
absl::Status all_reduce_ring(P2pOperation& operation, Span data, const Reducer& reducer,
                             std::size_t segment_bytes);

absl::Status reduce_scatter_direct(P2pOperation& operation, Span output, absl::Span<const Span> inputs,
                                   const Reducer& reducer);
absl::Status reduce_scatter_ring(P2pOperation& operation, Span output, absl::Span<const Span> inputs,
                                 const Reducer& reducer, std::size_t segment_bytes);

}  // namespace gradwire::collectives::cpu
