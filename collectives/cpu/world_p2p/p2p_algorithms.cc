#include "gradwire/collectives/cpu/world_p2p/p2p_algorithms.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"

namespace gradwire::collectives::cpu {

// Recursive doubling among the largest power of two of members. If there are more members, as many pairs as
// necessary first combine their data and then take part as one member each. The left operand is always the
// partial result of the lower positions, so that both partners compute the same bits.
absl::Status all_reduce_doubling(P2pOperation& operation, Span data, const Reducer& reducer) {
  int power = 1;
  while (2 * power <= operation.size()) power *= 2;
  const int pairs = operation.size() - power;
  char* const memory = operation.scratch(data.size);
  // Data is received into the buffer that does not hold the sum, and combine() writes the new sum there.
  Span sum = data;
  Span other{memory, data.size};
  const auto combine = [&](bool other_is_lower) {
    const void* const low = other_is_lower ? other.data : sum.data;
    const void* const high = other_is_lower ? sum.data : other.data;
    reducer.combine(other.data, low, high, data.size);
    std::swap(sum, other);
  };
  if (operation.rank() < 2 * pairs && operation.rank() % 2 == 0) {
    GRADWIRE_RETURN_IF_ERROR(operation.send_now(operation.rank() + 1, data));
    return operation.receive_now(operation.rank() + 1, data);
  }
  if (operation.rank() < 2 * pairs) {
    GRADWIRE_RETURN_IF_ERROR(operation.receive_now(operation.rank() - 1, other));
    combine(/*other_is_lower=*/true);
  }
  // The number among the members that take part: the odd members of the pairs come first, then the members
  // without a pair.
  const int number = operation.rank() < 2 * pairs ? operation.rank() / 2 : operation.rank() - pairs;
  for (int bit = 1; bit < power; bit *= 2) {
    const int partner = number ^ bit;
    const int position = partner < pairs ? 2 * partner + 1 : partner + pairs;
    const std::size_t received = operation.receive(position, other);
    const std::size_t sent = operation.send(position, sum);
    GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received));
    // After combine() the next receive writes into this buffer, so the send must have ended.
    GRADWIRE_RETURN_IF_ERROR(operation.wait_sent(sent));
    combine(partner < number);
  }
  if (sum.data != data.data && data.size > 0) std::memcpy(data.data, sum.data, data.size);
  if (operation.rank() < 2 * pairs) return operation.send_now(operation.rank() - 1, data);
  return absl::OkStatus();
}

// First each block travels around the ring and is summed, so that each member ends with the sum of one block.
// Then the sums travel around the ring.
absl::Status all_reduce_ring(P2pOperation& operation, Span data, const Reducer& reducer,
                             std::size_t segment_bytes) {
  const std::size_t element = reducer.element_size();
  const std::size_t block_bytes = data.size / static_cast<std::size_t>(operation.size()) + element;
  const int segments = pieces_of(block_bytes, segment_bytes);
  const std::size_t max_piece_bytes =
      (block_bytes / element / static_cast<std::size_t>(segments) + 1) * element;
  char* const buffers = operation.scratch(max_piece_bytes * P2pOperation::kAhead);
  const auto piece = [&](int block, int segment) {
    return piece_of(piece_of(data, operation.shifted(block), operation.size(), element), segment, segments,
                    element);
  };
  const int reduce_steps = operation.size() - 1;
  // At most kAhead receives are posted at a time (run_ring), so as many buffers suffice. A buffer is free
  // when received() has added its piece.
  const auto buffer_of = [&](int step, int segment) {
    const auto number = static_cast<std::size_t>((step * segments + segment) % P2pOperation::kAhead);
    return Span{buffers + number * max_piece_bytes, piece(-step - 1, segment).size};
  };
  const auto send_from = [&](int step, int segment) { return piece(-step, segment); };
  const auto receive_into = [&](int step, int segment) {
    return step < reduce_steps ? buffer_of(step, segment) : piece(-step - 1, segment);
  };
  const auto received = [&](int step, int segment) {
    if (step >= reduce_steps) return;
    const Span own = piece(-step - 1, segment);
    reducer.combine(own.data, buffer_of(step, segment).data, own.data, own.size);
  };
  // A sum is received into the block from which this member's own data was sent.
  const auto overwrites = [&](int step) { return step - reduce_steps; };
  return operation.run_ring({2 * reduce_steps, segments, send_from, receive_into, received, overwrites});
}

// Each member sends each other member its block, and combines the received blocks in the order of positions.
absl::Status reduce_scatter_direct(P2pOperation& operation, Span output, absl::Span<const Span> inputs,
                                   const Reducer& reducer) {
  const std::size_t bytes = output.size;
  char* const buffers = operation.scratch(bytes * inputs.size());
  const auto buffer_of = [&](int position) {
    return Span{buffers + bytes * static_cast<std::size_t>(position), bytes};
  };
  std::vector<std::size_t> received(inputs.size());
  for (int position = 0; position < operation.size(); ++position) {
    if (position != operation.rank())
      received[static_cast<std::size_t>(position)] = operation.receive(position, buffer_of(position));
  }
  for (int by = 1; by < operation.size(); ++by)
    operation.send(operation.shifted(by), inputs[static_cast<std::size_t>(operation.shifted(by))]);
  const auto part = [&](int position) -> const void* {
    return position == operation.rank() ? inputs[static_cast<std::size_t>(position)].data
                                        : buffer_of(position).data;
  };
  // The sum is computed in scratch memory first, because the output may be one of the inputs.
  for (int position = 0; position < operation.size(); ++position) {
    if (position != operation.rank())
      GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received[static_cast<std::size_t>(position)]));
    if (position == 0) continue;
    const void* const before = position == 1 ? part(0) : buffer_of(operation.rank()).data;
    reducer.combine(buffer_of(operation.rank()).data, before, part(position), bytes);
  }
  if (bytes > 0) std::memcpy(output.data, buffer_of(operation.rank()).data, bytes);
  return absl::OkStatus();
}

// A block travels around the ring, from the member after its owner to its owner; each member adds its own
// data.
absl::Status reduce_scatter_ring(P2pOperation& operation, Span output, absl::Span<const Span> inputs,
                                 const Reducer& reducer, std::size_t segment_bytes) {
  const std::size_t element = reducer.element_size();
  std::size_t largest = 0;
  for (const Span& input : inputs) largest = std::max(largest, input.size);
  const int segments = pieces_of(largest, segment_bytes);
  const std::size_t max_piece_bytes = (largest / element / static_cast<std::size_t>(segments) + 1) * element;
  const std::size_t half = max_piece_bytes * static_cast<std::size_t>(segments);
  // Buffers for two steps: a piece received in one step is sent in the next.
  char* const buffers = operation.scratch(2 * half);
  const auto piece = [&](int step, int segment) {
    return piece_of(inputs[static_cast<std::size_t>(operation.shifted(-step - 2))], segment, segments,
                    element);
  };
  const auto buffer_of = [&](int step, int segment) {
    const std::size_t offset =
        (step % 2 == 0 ? 0 : half) + max_piece_bytes * static_cast<std::size_t>(segment);
    return Span{buffers + offset, piece(step, segment).size};
  };
  const int steps = operation.size() - 1;
  const auto send_from = [&](int step, int segment) {
    return step == 0 ? piece(-1, segment) : buffer_of(step - 1, segment);
  };
  const auto receive_into = [&](int step, int segment) { return buffer_of(step, segment); };
  const auto received = [&](int step, int segment) {
    const Span own = piece(step, segment);
    const Span arrived = buffer_of(step, segment);
    const Span to = step + 1 < steps ? arrived : piece_of(output, segment, segments, element);
    reducer.combine(to.data, arrived.data, own.data, own.size);
  };
  const auto overwrites = [](int step) { return step < 2 ? -1 : step - 1; };
  return operation.run_ring({steps, segments, send_from, receive_into, received, overwrites});
}

// A binomial tree: the member at `offset` receives from the one at `offset` without its lowest set bit.
absl::Status broadcast_tree(P2pOperation& operation, Span data, int root) {
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
absl::Status broadcast_chain(P2pOperation& operation, Span data, int root, std::size_t segment_bytes) {
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
absl::Status reduce_tree(P2pOperation& operation, Span data, int root, const Reducer& reducer) {
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
absl::Status reduce_chain(P2pOperation& operation, Span data, int root, const Reducer& reducer,
                          std::size_t segment_bytes) {
  // A piece is received into a buffer, added to, and sent from the same buffer. With kBuffers buffers, up to
  // kBuffers - 1 receives are posted ahead while one piece is being sent.
  constexpr int kBuffers = P2pOperation::kAhead;
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
