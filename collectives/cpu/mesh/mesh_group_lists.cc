// Collectives of a MeshGroup that move blocks: gather, all-gather, scatter and all-to-all.

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_group.h"

namespace gradwire::collectives::cpu {
namespace {

absl::Status check_own(const char* name, Span own, Span in_list) {
  if (own.size == in_list.size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": this member's block has ", own.size,
                                                 " bytes, its entry in the list has ", in_list.size));
}

// memmove, because the caller may pass overlapping tensors.
void copy(Span to, Span from) {
  if (to.size > 0 && to.data != from.data) std::memmove(to.data, from.data, to.size);
}

}  // namespace

absl::Status MeshGroup::gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  const auto own = static_cast<std::size_t>(rank());
  if (rank() == root) {
    GRADWIRE_RETURN_IF_ERROR(check_list("outputs", outputs));
    GRADWIRE_RETURN_IF_ERROR(check_own("gather", data, outputs[own]));
  }
  return run("gather", deadline, [&](MeshOperation& operation) {
    if (rank() != root) {
      operation.send(root, data);
      return absl::OkStatus();
    }
    for (int by = 1; by < size(); ++by)
      operation.receive(operation.shifted(by), outputs[static_cast<std::size_t>(operation.shifted(by))]);
    copy(outputs[own], data);
    return absl::OkStatus();
  });
}

absl::Status MeshGroup::scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  const auto own = static_cast<std::size_t>(rank());
  if (rank() == root) {
    GRADWIRE_RETURN_IF_ERROR(check_list("inputs", inputs));
    GRADWIRE_RETURN_IF_ERROR(check_own("scatter", data, inputs[own]));
  }
  return run("scatter", deadline, [&](MeshOperation& operation) {
    if (rank() != root) {
      operation.receive(root, data);
      return absl::OkStatus();
    }
    for (int by = 1; by < size(); ++by)
      operation.send(operation.shifted(by), inputs[static_cast<std::size_t>(operation.shifted(by))]);
    copy(data, inputs[own]);
    return absl::OkStatus();
  });
}

// Short blocks are sent to each member directly. Long ones travel around the ring, in which each member sends
// and receives one block at a time.
absl::Status MeshGroup::all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_list("outputs", outputs));
  const auto own = static_cast<std::size_t>(rank());
  GRADWIRE_RETURN_IF_ERROR(check_own("all_gather", data, outputs[own]));
  std::size_t largest = 0;
  std::size_t total = 0;
  for (const Span& output : outputs) {
    largest = std::max(largest, output.size);
    total += output.size;
  }
  return run("all_gather", deadline, [&](MeshOperation& operation) {
    copy(outputs[own], data);
    if (size() == 1) return absl::OkStatus();
    if (total <= options_.small_bytes) {
      for (int by = 1; by < size(); ++by)
        operation.receive(operation.shifted(-by), outputs[static_cast<std::size_t>(operation.shifted(-by))]);
      for (int by = 1; by < size(); ++by) operation.send(operation.shifted(by), data);
      return absl::OkStatus();
    }
    const int segments = pieces_of(largest, options_.segment_bytes);
    const auto piece = [&](int by, int segment) {
      return piece_of(outputs[static_cast<std::size_t>(operation.shifted(by))], segment, segments, 1);
    };
    const auto send_from = [&](int step, int segment) { return piece(-step, segment); };
    const auto receive_into = [&](int step, int segment) { return piece(-step - 1, segment); };
    const auto received = [](int, int) {};
    const auto overwrites = [](int) { return -1; };
    return operation.run_ring({size() - 1, segments, send_from, receive_into, received, overwrites});
  });
}

// In step s each member sends to the member s positions after it and receives from the one s positions before
// it. All receives are posted at the start; at most two sends are in progress at a time.
absl::Status MeshGroup::all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                   absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_list("outputs", outputs));
  GRADWIRE_RETURN_IF_ERROR(check_list("inputs", inputs));
  const auto own = static_cast<std::size_t>(rank());
  GRADWIRE_RETURN_IF_ERROR(check_own("all_to_all", inputs[own], outputs[own]));
  return run("all_to_all", deadline, [&](MeshOperation& operation) {
    for (int by = 1; by < size(); ++by)
      operation.receive(operation.shifted(-by), outputs[static_cast<std::size_t>(operation.shifted(-by))]);
    std::vector<std::size_t> sent;
    for (int by = 1; by < size(); ++by) {
      if (by > 2) GRADWIRE_RETURN_IF_ERROR(operation.wait_sent(sent[static_cast<std::size_t>(by - 3)]));
      sent.push_back(
          operation.send(operation.shifted(by), inputs[static_cast<std::size_t>(operation.shifted(by))]));
    }
    copy(outputs[own], inputs[own]);
    return absl::OkStatus();
  });
}

}  // namespace gradwire::collectives::cpu
