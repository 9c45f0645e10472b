// The operations of HostGroup that have one buffer for each rank.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/host_group.h"

namespace gradwire::collectives::cpu {
namespace {

// The part of a span from `offset` on, at most `room` bytes.
Span piece_of(const Span& data, std::size_t offset, std::size_t room) {
  return offset >= data.size ? Span{data.data, 0} : data.part(offset, std::min(room, data.size - offset));
}

}  // namespace

// Each operation copies this member's part for itself after it has published: the other members do not need
// it.

absl::Status HostGroup::gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) {
  return in_pieces(data.size, memory_->slot_bytes(),
                   [&](std::size_t offset, std::size_t length) -> absl::Status {
                     GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
                     const Span piece = data.part(offset, length);
                     if (rank_ != root) phases_.copy_for_all(phases_.slot(rank_), piece.data, length);
                     phases_.publish();
                     if (rank_ != root) return absl::OkStatus();
                     copy_bytes(outputs[rank_].part(offset, 0).data, piece.data, length);
                     for (int member = 0; member < size_; ++member) {
                       if (member == rank_) continue;
                       GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
                       copy_bytes(outputs[member].part(offset, 0).data, phases_.slot(member), length);
                     }
                     return absl::OkStatus();
                   });
}

absl::Status HostGroup::all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) {
  return in_pieces(data.size, memory_->slot_bytes(),
                   [&](std::size_t offset, std::size_t length) -> absl::Status {
                     GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
                     const Span piece = data.part(offset, length);
                     phases_.copy_for_all(phases_.slot(rank_), piece.data, length);
                     phases_.publish();
                     copy_bytes(outputs[rank_].part(offset, 0).data, piece.data, length);
                     for (int step = 1; step < size_; ++step) {
                       // Each reader begins with the member after it, so that not all of them read the same
                       // slot at once.
                       const int member = (rank_ + step) % size_;
                       GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
                       copy_bytes(outputs[member].part(offset, 0).data, phases_.slot(member), length);
                     }
                     return absl::OkStatus();
                   });
}

absl::Status HostGroup::scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(
      in_pieces(data.size, part_bytes(), [&](std::size_t offset, std::size_t length) -> absl::Status {
        GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
        for (int member = 0; rank_ == root && member < size_; ++member) {
          if (member != rank_)
            phases_.copy_for(member, part_of(rank_, member), inputs[member].part(offset, 0).data, length);
        }
        phases_.publish();
        if (rank_ == root) return absl::OkStatus();
        GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(root, deadline));
        copy_bytes(data.part(offset, 0).data, part_of(root, rank_), length);
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
        phases_.copy_for(member, part_of(rank_, member), inputs[member].part(offset, 0).data, length);
    }
    phases_.publish();
    const Span mine = inputs[rank_].part(offset, length), into = output.part(offset, length);
    if (size_ == 1) {
      copy_bytes(into.data, mine.data, length);
      return absl::OkStatus();
    }
    GRADWIRE_RETURN_IF_ERROR(phases_.wait_all_published(deadline));
    const auto part = [&](int member, std::size_t at) -> const char* {
      return (member == rank_ ? static_cast<char*>(mine.data) : part_of(member, rank_)) + at;
    };
    reduce_parts(reducer, length, part, [&](std::size_t at, const char* sum, std::size_t bytes) {
      copy_bytes(into.part(at, 0).data, sum, bytes);
    });
    return absl::OkStatus();
  });
}

// Members may exchange blocks of different sizes, and no member knows the sizes of the others' blocks. All of
// them must execute the same number of phases. So:
// 1. Find the largest block of all members (largest()). It gives the number of phases.
// 2. In each phase, exchange one piece of every block. A block that has ended takes part with an empty piece.
// 3. Compare the size that the writer has with the size that the reader expects, in every phase. A difference
//    breaks the group: the other members are in the middle of the operation.
absl::Status HostGroup::all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                   absl::Time deadline) {
  uint64_t most = 0;
  for (const Span& input : inputs) most = std::max<uint64_t>(most, input.size);
  GRADWIRE_ASSIGN_OR_RETURN(most, largest(most, deadline));
  const auto check = [&](int member, uint64_t theirs) -> absl::Status {
    if (theirs == outputs[member].size) return absl::OkStatus();
    return phases_.fail(absl::InvalidArgumentError(absl::StrCat(phases_.name_of(member), " sends ", theirs,
                                                                " bytes to ", phases_.name_of(rank_),
                                                                ", which expects ", outputs[member].size)));
  };
  // Each part of a slot begins with the size of all data for its reader, which the reader checks.
  const std::size_t stride = memory_->slot_bytes() / size_ / sizeof(uint64_t) * sizeof(uint64_t);
  const std::size_t room = stride - sizeof(uint64_t);
  return in_pieces(most, room, [&](std::size_t offset, std::size_t) -> absl::Status {
    GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
    for (int member = 0; member < size_; ++member) {
      const uint64_t size = inputs[member].size;
      char* const part = phases_.slot(rank_) + member * stride;
      std::memcpy(part, &size, sizeof size);
      const Span piece = piece_of(inputs[member], offset, room);
      phases_.copy_for(member, part + sizeof size, piece.data, piece.size);
    }
    phases_.publish();
    for (int step = 0; step < size_; ++step) {
      const int member = (rank_ + step) % size_;
      if (member != rank_) GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
      const char* const part = phases_.slot(member) + rank_ * stride;
      uint64_t size = 0;
      std::memcpy(&size, part, sizeof size);
      GRADWIRE_RETURN_IF_ERROR(check(member, size));
      const Span piece = piece_of(outputs[member], offset, room);
      copy_bytes(piece.data, part + sizeof size, piece.size);
    }
    return absl::OkStatus();
  });
}

}  // namespace gradwire::collectives::cpu
