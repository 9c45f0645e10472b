// All-reduce and reduce-scatter of a MeshGroup.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_group.h"

namespace gradwire::collectives::cpu {

absl::Status MeshGroup::all_reduce(Span data, const Reducer& reducer, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_elements(reducer, data));
  return run("all_reduce", deadline, [&](MeshOperation& operation) {
    if (size() == 1) return absl::OkStatus();
    return data.size <= options_.small_bytes ? all_reduce_doubling(operation, data, reducer)
                                             : all_reduce_ring(operation, data, reducer);
  });
}

// Recursive doubling among the largest power of two of members; in front, as many pairs as there are members beyond it
// become one member each. Of two partial results the one of the lower positions is always the left operand, so that
// both members compute the same bits.
absl::Status MeshGroup::all_reduce_doubling(MeshOperation& operation, Span data, const Reducer& reducer) {
  int power = 1;
  while (2 * power <= size()) power *= 2;
  const int pairs = size() - power;
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
  if (rank() < 2 * pairs && rank() % 2 == 0) {
    GRADWIRE_RETURN_IF_ERROR(operation.send_now(rank() + 1, data));
    return operation.receive_now(rank() + 1, data);
  }
  if (rank() < 2 * pairs) {
    GRADWIRE_RETURN_IF_ERROR(operation.receive_now(rank() - 1, other));
    combine(/*other_is_lower=*/true);
  }
  const int number = rank() < 2 * pairs ? rank() / 2 : rank() - pairs;
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
  if (rank() < 2 * pairs) return operation.send_now(rank() - 1, data);
  return absl::OkStatus();
}

// Each member ends up with the sum of one block, which has travelled around the ring; then the sums travel.
absl::Status MeshGroup::all_reduce_ring(MeshOperation& operation, Span data, const Reducer& reducer) {
  const std::size_t element = reducer.element_size();
  const std::size_t block_bytes = data.size / static_cast<std::size_t>(size()) + element;
  const int segments = pieces_of(block_bytes, options_.segment_bytes);
  const std::size_t most = (block_bytes / element / static_cast<std::size_t>(segments) + 1) * element;
  char* const places = operation.scratch(most * MeshOperation::kAhead);
  const auto piece = [&](int block, int segment) {
    return piece_of(piece_of(data, shifted(block), size(), element), segment, segments, element);
  };
  const int sums_travel = size() - 1;
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

absl::Status MeshGroup::reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                                       absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_list("inputs", inputs));
  std::size_t total = 0;
  for (const Span& input : inputs) {
    GRADWIRE_RETURN_IF_ERROR(check_elements(reducer, input));
    total += input.size;
  }
  const Span& own = inputs[static_cast<std::size_t>(rank())];
  if (own.size != output.size)
    return absl::InvalidArgumentError("reduce_scatter: the output has another size than this member's input");
  return run("reduce_scatter", deadline, [&](MeshOperation& operation) {
    if (size() == 1) {
      if (own.size > 0) std::memmove(output.data, own.data, own.size);
      return absl::OkStatus();
    }
    return total <= options_.small_bytes ? reduce_scatter_direct(operation, output, inputs, reducer)
                                         : reduce_scatter_ring(operation, output, inputs, reducer);
  });
}

// Each sends each what is its, and combines what comes in the order of positions.
absl::Status MeshGroup::reduce_scatter_direct(MeshOperation& operation, Span output,
                                              absl::Span<const Span> inputs, const Reducer& reducer) {
  const std::size_t bytes = output.size;
  char* const places = operation.scratch(bytes * inputs.size());
  const auto place = [&](int position) {
    return Span{places + bytes * static_cast<std::size_t>(position), bytes};
  };
  std::vector<std::size_t> received(inputs.size());
  for (int position = 0; position < size(); ++position) {
    if (position != rank())
      received[static_cast<std::size_t>(position)] = operation.receive(position, place(position));
  }
  for (int by = 1; by < size(); ++by)
    operation.send(shifted(by), inputs[static_cast<std::size_t>(shifted(by))]);
  const auto part = [&](int position) -> const void* {
    return position == rank() ? inputs[static_cast<std::size_t>(position)].data : place(position).data;
  };
  // Into memory of this function's first: the output may be one of the inputs.
  for (int position = 0; position < size(); ++position) {
    if (position != rank())
      GRADWIRE_RETURN_IF_ERROR(operation.wait_received(received[static_cast<std::size_t>(position)]));
    if (position == 0) continue;
    const void* const before = position == 1 ? part(0) : place(rank()).data;
    reducer.combine(place(rank()).data, before, part(position), bytes);
  }
  if (bytes > 0) std::memcpy(output.data, place(rank()).data, bytes);
  return absl::OkStatus();
}

// A block travels from the member behind its own around the ring to its own; each adds to it what it has.
absl::Status MeshGroup::reduce_scatter_ring(MeshOperation& operation, Span output,
                                            absl::Span<const Span> inputs, const Reducer& reducer) {
  const std::size_t element = reducer.element_size();
  std::size_t largest = 0;
  for (const Span& input : inputs) largest = std::max(largest, input.size);
  const int segments = pieces_of(largest, options_.segment_bytes);
  const std::size_t most = (largest / element / static_cast<std::size_t>(segments) + 1) * element;
  const std::size_t half = most * static_cast<std::size_t>(segments);
  // Of two steps: what comes in one is sent in the next.
  char* const places = operation.scratch(2 * half);
  const auto piece = [&](int step, int segment) {
    return piece_of(inputs[static_cast<std::size_t>(shifted(-step - 2))], segment, segments, element);
  };
  const auto place = [&](int step, int segment) {
    const std::size_t offset = (step % 2 == 0 ? 0 : half) + most * static_cast<std::size_t>(segment);
    return Span{places + offset, piece(step, segment).size};
  };
  const int steps = size() - 1;
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
