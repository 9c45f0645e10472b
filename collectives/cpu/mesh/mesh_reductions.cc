#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_algorithms.h"

namespace gradwire::collectives::cpu {

// Recursive doubling among the largest power of two of members; in front, as many pairs as there are members
// beyond it become one member each. Of two partial results the one of the lower positions is always the left
// operand, so that both members compute the same bits.
absl::Status all_reduce_doubling(MeshOperation& operation, Span data, const Reducer& reducer) {
  int power = 1;
  while (2 * power <= operation.size()) power *= 2;
  const int pairs = operation.size() - power;
  char* const memory = operation.scratch(data.size);
  // What has come goes into the one that does not hold the sum; the combination too.
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
  const int number = operation.rank() < 2 * pairs ? operation.rank() / 2 : operation.rank() - pairs;
  for (int bit = 1; bit < power; bit *= 2) {
    const int partner = number ^ bit;
    const int position = partner < pairs ? 2 * partner + 1 : partner + pairs;
    const std::size_t received = operation.receive(position, other);
    const std::size_t sent = operation.send(position, sum);
    GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received));
    // combine() makes it the place of what comes next.
    GRADWIRE_RETURN_IF_ERROR(operation.wait_sent(sent));
    combine(partner < number);
  }
  if (sum.data != data.data && data.size > 0) std::memcpy(data.data, sum.data, data.size);
  if (operation.rank() < 2 * pairs) return operation.send_now(operation.rank() - 1, data);
  return absl::OkStatus();
}

// Each member ends up with the sum of one block, which has travelled around the ring; then the sums travel.
absl::Status all_reduce_ring(MeshOperation& operation, Span data, const Reducer& reducer,
                             std::size_t segment_bytes) {
  const std::size_t element = reducer.element_size();
  const std::size_t block_bytes = data.size / static_cast<std::size_t>(operation.size()) + element;
  const int segments = pieces_of(block_bytes, segment_bytes);
  const std::size_t most = (block_bytes / element / static_cast<std::size_t>(segments) + 1) * element;
  char* const places = operation.scratch(most * MeshOperation::kAhead);
  const auto piece = [&](int block, int segment) {
    return piece_of(piece_of(data, operation.shifted(block), operation.size(), element), segment, segments,
                    element);
  };
  const int sums_travel = operation.size() - 1;
  const auto place = [&](int step, int segment) {
    const auto number = static_cast<std::size_t>((step * segments + segment) % MeshOperation::kAhead);
    return Span{places + number * most, piece(-step - 1, segment).size};
  };
  const auto send_from = [&](int step, int segment) { return piece(-step, segment); };
  const auto receive_into = [&](int step, int segment) {
    return step < sums_travel ? place(step, segment) : piece(-step - 1, segment);
  };
  const auto received = [&](int step, int segment) {
    if (step >= sums_travel) return;
    const Span own = piece(-step - 1, segment);
    reducer.combine(own.data, place(step, segment).data, own.data, own.size);
  };
  // Where a sum goes, this member's part of it was sent from.
  const auto overwrites = [&](int step) { return step - sums_travel; };
  return operation.run_ring({2 * sums_travel, segments, send_from, receive_into, received, overwrites});
}

// Each sends each what is its, and combines what comes in the order of positions.
absl::Status reduce_scatter_direct(MeshOperation& operation, Span output, absl::Span<const Span> inputs,
                                   const Reducer& reducer) {
  const std::size_t bytes = output.size;
  char* const places = operation.scratch(bytes * inputs.size());
  const auto place = [&](int position) {
    return Span{places + bytes * static_cast<std::size_t>(position), bytes};
  };
  std::vector<std::size_t> received(inputs.size());
  for (int position = 0; position < operation.size(); ++position) {
    if (position != operation.rank())
      received[static_cast<std::size_t>(position)] = operation.receive(position, place(position));
  }
  for (int by = 1; by < operation.size(); ++by)
    operation.send(operation.shifted(by), inputs[static_cast<std::size_t>(operation.shifted(by))]);
  const auto part = [&](int position) -> const void* {
    return position == operation.rank() ? inputs[static_cast<std::size_t>(position)].data
                                        : place(position).data;
  };
  // Into memory of this function's first: the output may be one of the inputs.
  for (int position = 0; position < operation.size(); ++position) {
    if (position != operation.rank())
      GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received[static_cast<std::size_t>(position)]));
    if (position == 0) continue;
    const void* const before = position == 1 ? part(0) : place(operation.rank()).data;
    reducer.combine(place(operation.rank()).data, before, part(position), bytes);
  }
  if (bytes > 0) std::memcpy(output.data, place(operation.rank()).data, bytes);
  return absl::OkStatus();
}

// A block travels from the member behind its own around the ring to its own; each adds to it what it has.
absl::Status reduce_scatter_ring(MeshOperation& operation, Span output, absl::Span<const Span> inputs,
                                 const Reducer& reducer, std::size_t segment_bytes) {
  const std::size_t element = reducer.element_size();
  std::size_t largest = 0;
  for (const Span& input : inputs) largest = std::max(largest, input.size);
  const int segments = pieces_of(largest, segment_bytes);
  const std::size_t most = (largest / element / static_cast<std::size_t>(segments) + 1) * element;
  const std::size_t half = most * static_cast<std::size_t>(segments);
  // Of two steps: what comes in one is sent in the next.
  char* const places = operation.scratch(2 * half);
  const auto piece = [&](int step, int segment) {
    return piece_of(inputs[static_cast<std::size_t>(operation.shifted(-step - 2))], segment, segments,
                    element);
  };
  const auto place = [&](int step, int segment) {
    const std::size_t offset = (step % 2 == 0 ? 0 : half) + most * static_cast<std::size_t>(segment);
    return Span{places + offset, piece(step, segment).size};
  };
  const int steps = operation.size() - 1;
  const auto send_from = [&](int step, int segment) {
    return step == 0 ? piece(-1, segment) : place(step - 1, segment);
  };
  const auto receive_into = [&](int step, int segment) { return place(step, segment); };
  const auto received = [&](int step, int segment) {
    const Span own = piece(step, segment);
    const Span come = place(step, segment);
    const Span to = step + 1 < steps ? come : piece_of(output, segment, segments, element);
    reducer.combine(to.data, come.data, own.data, own.size);
  };
  const auto overwrites = [](int step) { return step < 2 ? -1 : step - 1; };
  return operation.run_ring({steps, segments, send_from, receive_into, received, overwrites});
}

}  // namespace gradwire::collectives::cpu
