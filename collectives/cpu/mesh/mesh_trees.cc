#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_algorithms.h"

namespace gradwire::collectives::cpu {

// A binomial tree: who is at `offset` hears from the one whose lowest bit is missing.
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

// One after the other, in pieces, so that all of them send at the same time.
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

// The tree of broadcast_tree, upwards.
absl::Status reduce_tree(MeshOperation& operation, Span data, int root, const Reducer& reducer) {
  const int offset = operation.from_root(root);
  char* const own = operation.scratch(2 * data.size);
  const Span other{own + data.size, data.size};
  // The root's is the result; others keep what they brought.
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

// From the last to the root, in pieces: each adds its own to what comes and hands it on.
absl::Status reduce_chain(MeshOperation& operation, Span data, int root, const Reducer& reducer,
                          std::size_t segment_bytes) {
  constexpr int kPlaces = MeshOperation::kAhead;
  const int offset = operation.from_root(root);
  const bool first = offset + 1 == operation.size();
  const int pieces = pieces_of(data.size, segment_bytes);
  const std::size_t element = reducer.element_size();
  // A piece has at most so many bytes.
  const std::size_t most = (data.size / element / static_cast<std::size_t>(pieces) + 1) * element;
  char* const places = operation.scratch(first ? 0 : most * kPlaces);
  const auto place_of = [&](int i) {
    return Span{places + most * static_cast<std::size_t>(i % kPlaces),
                piece_of(data, i, pieces, element).size};
  };
  std::vector<std::size_t> received;
  std::vector<std::size_t> sent;
  const auto post = [&](int i) {
    received.push_back(operation.receive(operation.at(offset + 1, root), place_of(i)));
  };
  for (int i = 0; !first && i < pieces && i < kPlaces - 1; ++i) post(i);
  for (int i = 0; i < pieces; ++i) {
    const Span own = piece_of(data, i, pieces, element);
    if (!first) {
      // The place of the piece before is free as soon as it has left.
      if (i > 0 && offset > 0)
        GRADWIRE_RETURN_IF_ERROR(operation.wait_sent(sent[static_cast<std::size_t>(i - 1)]));
      if (i + kPlaces - 1 < pieces) post(i + kPlaces - 1);
      GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received[static_cast<std::size_t>(i)]));
      const Span target = offset == 0 ? own : place_of(i);
      reducer.combine(target.data, own.data, place_of(i).data, own.size);
    }
    if (offset > 0) sent.push_back(operation.send(operation.at(offset - 1, root), first ? own : place_of(i)));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::cpu
