// The operations of HostGroup that have one buffer for each rank.
#include <cstddef>

#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/host_all_gather.h"
#include "gradwire/collectives/cpu/host_all_to_all.h"
#include "gradwire/collectives/cpu/host_group.h"

namespace gradwire::collectives::cpu {

// Each operation copies this member's part for itself after it has published, because the other members do
// not need it.

absl::Status HostGroup::gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) {
  return in_pieces(data.size, memory_->slot_bytes(),
                   [&](std::size_t offset, std::size_t length) -> absl::Status {
                     GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
                     const Span piece = data.part(offset, length);
                     if (rank_ != root) phases_.write(piece);
                     phases_.publish();
                     if (rank_ != root) return absl::OkStatus();
                     copy_bytes(outputs[rank_].part(offset, 0).data, piece.data, length);
                     for (int member = 0; member < size_; ++member) {
                       if (member == rank_) continue;
                       GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
                       copy_bytes(outputs[member].part(offset, 0).data, phases_.data(member, length), length);
                     }
                     return absl::OkStatus();
                   });
}

absl::Status HostGroup::all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) {
  return HostAllGather(phases_, memory_->slot_bytes(), data, outputs).run(deadline);
}

absl::Status HostGroup::scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(
      in_pieces(data.size, part_bytes(), [&](std::size_t offset, std::size_t length) -> absl::Status {
        GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
        for (int member = 0; rank_ == root && member < size_; ++member) {
          if (member != rank_)
            phases_.copy_for(member, part_of(rank_, member, length), inputs[member].part(offset, 0).data,
                             length);
        }
        phases_.publish();
        if (rank_ == root) return absl::OkStatus();
        GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(root, deadline));
        copy_bytes(data.part(offset, 0).data, part_of(root, rank_, length), length);
        return absl::OkStatus();
      }));
  if (rank_ == root) copy_bytes(data.data, inputs[rank_].data, data.size);
  return absl::OkStatus();
}

absl::Status HostGroup::reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                                       absl::Time deadline) {
  const std::size_t room = part_bytes() / reducer.element_size() * reducer.element_size();
  return in_pieces(output.size, room, [&](std::size_t offset, std::size_t length) -> absl::Status {
    GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
    for (int member = 0; member < size_; ++member) {
      if (member != rank_)
        phases_.copy_for(member, part_of(rank_, member, length), inputs[member].part(offset, 0).data, length);
    }
    phases_.publish();
    const Span mine = inputs[rank_].part(offset, length), into = output.part(offset, length);
    if (size_ == 1) {
      copy_bytes(into.data, mine.data, length);
      return absl::OkStatus();
    }
    GRADWIRE_RETURN_IF_ERROR(phases_.wait_all_published(deadline));
    const auto part = [&](int member, std::size_t at) -> const char* {
      return (member == rank_ ? static_cast<char*>(mine.data) : part_of(member, rank_, length)) + at;
    };
    reduce_parts(reducer, length, part, [&](std::size_t at, const char* sum, std::size_t bytes) {
      copy_bytes(into.part(at, 0).data, sum, bytes);
    });
    return absl::OkStatus();
  });
}

absl::Status HostGroup::all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                   absl::Time deadline) {
  return HostAllToAll(phases_, part_bytes(), outputs, inputs).run(deadline);
}

}  // namespace gradwire::collectives::cpu
