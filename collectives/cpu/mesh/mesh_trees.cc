#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_algorithms.h"

namespace gradwire::collectives::cpu {

// A binomial tree: the member at `offset` receives from the one at `offset` without its lowest set bit.
absl::Status broadcast_tree(MeshOperation& operation, Span data, int root) {
  const int offset = operation.from_root(root);
  int bit = 1;
  while (bit < operation.size() && (offset & bit) == 0) bit *= 2;
  if (offset != 0) GRADWIRE_RETURN_IF_ERROR(operation.receive_now(operation.at(offset - bit, root), data));
  for (bit /= 2; bit > 0; bit /= 2) {
    if (offset + bit < operation.size()) operation.send(operation.at(offset + bit, root), data);
  }
  return absl::OkStatus();
}

// A chain: the members forward the data in pieces, so that all of them send at the same time.
absl::Status broadcast_chain(MeshOperation& operation, Span data, int root, std::size_t segment_bytes) {
  const int offset = operation.from_root(root);
  const int pieces = pieces_of(data.size, segment_bytes);
  std::vector<std::size_t> received;
  for (int i = 0; offset > 0 && i < pieces; ++i)
    received.push_back(operation.receive(operation.at(offset - 1, root), piece_of(data, i, pieces, 1)));
  for (int i = 0; i < pieces; ++i) {
    if (offset > 0) GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received[static_cast<std::size_t>(i)]));
    if (offset + 1 < operation.size())
      operation.send(operation.at(offset + 1, root), piece_of(data, i, pieces, 1));
  }
  return absl::OkStatus();
}

// The tree of broadcast_tree, in the other direction.
absl::Status reduce_tree(MeshOperation& operation, Span data, int root, const Reducer& reducer) {
  const int offset = operation.from_root(root);
  char* const own = operation.scratch(2 * data.size);
  const Span other{own + data.size, data.size};
  // The root's data is replaced by the result; the data of other members does not change.
  Span sum = data;
  for (int bit = 1; bit < operation.size(); bit *= 2) {
    if ((offset & bit) != 0) return operation.send_now(operation.at(offset - bit, root), sum);
    if (offset + bit >= operation.size()) continue;
    GRADWIRE_RETURN_IF_ERROR(operation.receive_now(operation.at(offset + bit, root), other));
    const Span target = offset == 0 ? data : Span{own, data.size};
    reducer.combine(target.data, sum.data, other.data, data.size);
    sum = target;
  }
  return absl::OkStatus();
}

// A chain from the last member to the root, in pieces: each adds its own data and forwards the sum.
absl::Status reduce_chain(MeshOperation& operation, Span data, int root, const Reducer& reducer,
                          std::size_t segment_bytes) {
  // A piece is received into a buffer, added to, and sent from the same buffer. With kBuffers buffers, up to
  // kBuffers - 1 receives are posted ahead while one piece is being sent.
  constexpr int kBuffers = MeshOperation::kAhead;
  const int offset = operation.from_root(root);
  const bool first = offset + 1 == operation.size();
  const int pieces = pieces_of(data.size, segment_bytes);
  const std::size_t element = reducer.element_size();
  // Maximum size of a piece.
  const std::size_t max_piece_bytes = (data.size / element / static_cast<std::size_t>(pieces) + 1) * element;
  char* const buffers = operation.scratch(first ? 0 : max_piece_bytes * kBuffers);
  const auto buffer_of = [&](int i) {
    return Span{buffers + max_piece_bytes * static_cast<std::size_t>(i % kBuffers),
                piece_of(data, i, pieces, element).size};
  };
  std::vector<std::size_t> received;
  std::vector<std::size_t> sent;
  const auto post = [&](int i) {
    received.push_back(operation.receive(operation.at(offset + 1, root), buffer_of(i)));
  };
  for (int i = 0; !first && i < pieces && i < kBuffers - 1; ++i) post(i);
  for (int i = 0; i < pieces; ++i) {
    const Span own = piece_of(data, i, pieces, element);
    if (!first) {
      // The buffer of the piece before is free when that piece has been sent.
      if (i > 0 && offset > 0)
        GRADWIRE_RETURN_IF_ERROR(operation.wait_sent(sent[static_cast<std::size_t>(i - 1)]));
      if (i + kBuffers - 1 < pieces) post(i + kBuffers - 1);
      GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received[static_cast<std::size_t>(i)]));
      const Span target = offset == 0 ? own : buffer_of(i);
      reducer.combine(target.data, own.data, buffer_of(i).data, own.size);
    }
    if (offset > 0)
      sent.push_back(operation.send(operation.at(offset - 1, root), first ? own : buffer_of(i)));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::cpu
