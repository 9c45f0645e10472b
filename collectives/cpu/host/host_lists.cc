// The operations of HostGroup that have one buffer for each rank.

#include "gradwire/collectives/cpu/host/host_lists.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/host/host_group.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"

namespace gradwire::collectives::cpu {

absl::Status HostAllGather::run(absl::Time deadline) {
  const int rank = phases_.rank(), size = phases_.size();
  most_ = data_.size;
  differs_ = check(rank, data_.size);
  std::size_t offset = 0;
  do {
    // A phase that has nothing to wait for does not read the clock. Only this bounds their number.
    if (offset != 0 && Clock::system().now() > deadline) {
      return phases_.fail(absl::DeadlineExceededError(
          absl::StrCat("a block of ", most_, " bytes was not gathered in time: ", offset, " bytes were")));
    }
    GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
    write(offset);
    phases_.publish();
    const Span own = piece_of(data_, offset);
    if (differs_.ok()) copy_bytes(piece_of(outputs_[rank], offset).data, own.data, own.size);
    for (int step = 1; step < size; ++step) {
      // Each reader begins with the member after it, so that not all of them read the same slot at once.
      GRADWIRE_RETURN_IF_ERROR(read((rank + step) % size, offset, deadline));
    }
    offset += slot_bytes_;
  } while (offset < most_);
  return differs_;
}

Span HostAllGather::piece_of(const Span& block, std::size_t offset) const {
  return offset >= block.size ? Span{} : block.part(offset, std::min(slot_bytes_, block.size - offset));
}

void HostAllGather::write(std::size_t offset) {
  const int rank = phases_.rank();
  if (offset == 0) {
    const Word word = data_.size;
    std::memcpy(phases_.line(rank).bytes, &word, sizeof word);
  }
  const Span piece = piece_of(data_, offset);
  phases_.copy_for_all(place_of(rank, data_.size), piece.data, piece.size);
}

absl::Status HostAllGather::read(int member, std::size_t offset, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
  if (offset == 0) {
    Word theirs = 0;
    std::memcpy(&theirs, phases_.line(member).bytes, sizeof theirs);
    most_ = std::max(most_, theirs);
    if (theirs != outputs_[member].size) [[unlikely]]
      differs_.Update(check(member, theirs));
  }
  if (!differs_.ok()) [[unlikely]]
    return absl::OkStatus();
  const Span piece = piece_of(outputs_[member], offset);
  copy_bytes(piece.data, place_of(member, outputs_[member].size), piece.size);
  return absl::OkStatus();
}

absl::Status HostAllGather::check(int member, Word theirs) const {
  const std::size_t expected = outputs_[member].size;
  if (theirs == expected) [[likely]]
    return absl::OkStatus();
  const std::string reader = phases_.name_of(phases_.rank());
  return absl::InvalidArgumentError(
      absl::StrCat(phases_.name_of(member), " gathers ", theirs, " bytes, but its entry in the list of ",
                   reader, " has ", expected, "; the entry must have the shape of that rank's tensor"));
}

// A member's line in the first phase of HostAllToAll: the size of its largest block (8 bytes) with kInLine in
// the highest bit if the blocks are in the line; then, for each reader, the size of its block (1 byte); then
// the blocks. The member's block for itself is not there.

namespace {

constexpr uint64_t kInLine = uint64_t{1} << 63;
constexpr std::size_t kLineBytes = HostMemory::kInlineBytes;
static_assert(kLineBytes < 256, "the size of a block must fit into one byte");

// The part of a span from `offset` on, at most `room` bytes.
Span piece_of(const Span& data, std::size_t offset, std::size_t room) {
  return offset >= data.size ? Span{data.data, 0} : data.part(offset, std::min(room, data.size - offset));
}

uint64_t first_word(const char* line) {
  uint64_t word = 0;
  std::memcpy(&word, line, sizeof word);
  return word;
}

}  // namespace

absl::Status HostAllToAll::run(absl::Time deadline) {
  const int rank = phases_.rank(), size = phases_.size();
  uint64_t most = 0;
  for (const Span& input : inputs_) most = std::max<uint64_t>(most, input.size);
  const bool in_line = fits_line();
  std::size_t offset = 0;
  do {
    const bool first = offset == 0;
    // A phase that has nothing to wait for does not read the clock. Only this bounds their number.
    if (!first && Clock::system().now() > deadline) {
      return phases_.fail(absl::DeadlineExceededError(
          absl::StrCat("a block of ", most, " bytes was not exchanged in time: ", offset, " bytes were")));
    }
    GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
    if (first) {
      const uint64_t word = most | (in_line ? kInLine : 0);
      std::memcpy(phases_.line(rank).bytes, &word, sizeof word);
    }
    if (first && in_line) {
      write_line();
    } else {
      write_slot(offset);
    }
    phases_.publish();
    if (first) {
      GRADWIRE_RETURN_IF_ERROR(check(rank, inputs_[rank].size));
      copy_bytes(outputs_[rank].data, inputs_[rank].data, inputs_[rank].size);
    }
    for (int step = 1; step < size; ++step) {
      const int member = (rank + step) % size;
      GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
      const uint64_t word = first ? first_word(phases_.line(member).bytes) : 0;
      most = std::max(most, word & ~kInLine);
      GRADWIRE_RETURN_IF_ERROR((word & kInLine) != 0 ? read_line(member) : read_slot(member, offset));
    }
    offset += room();
  } while (offset < most);
  return absl::OkStatus();
}

std::size_t HostAllToAll::line_size(int member) const {
  return member == phases_.rank() ? 0 : inputs_[member].size;
}

bool HostAllToAll::fits_line() const {
  std::size_t bytes = sizeof(uint64_t) + inputs_.size();
  for (int member = 0; member < phases_.size(); ++member) {
    const std::size_t size = line_size(member);
    if (size > kLineBytes) return false;
    bytes += size;
  }
  return bytes <= kLineBytes;
}

void HostAllToAll::write_line() {
  char* const sizes = phases_.line(phases_.rank()).bytes + sizeof(uint64_t);
  char* to = sizes + inputs_.size();
  for (int member = 0; member < phases_.size(); ++member) {
    const std::size_t size = line_size(member);
    sizes[member] = static_cast<char>(size);
    copy_bytes(to, inputs_[member].data, size);
    to += size;
  }
}

void HostAllToAll::write_slot(std::size_t offset) {
  const int rank = phases_.rank();
  for (int member = 0; member < phases_.size(); ++member) {
    if (member == rank) continue;
    char* const part = phases_.slot(rank) + static_cast<std::size_t>(member) * part_bytes_;
    const uint64_t size = inputs_[member].size;
    std::memcpy(part, &size, sizeof size);
    const Span piece = piece_of(inputs_[member], offset, room());
    phases_.copy_for(member, part + kHeaderBytes, piece.data, piece.size);
  }
}

// The member may be hostile and may change its line at any time. So this reads a copy, and bounds where the
// block begins.
absl::Status HostAllToAll::read_line(int member) {
  const int rank = phases_.rank();
  // A line has no room for the sizes of so many blocks.
  if (sizeof(uint64_t) + inputs_.size() > kLineBytes) {
    return phases_.fail(absl::InvalidArgumentError(
        absl::StrCat(phases_.name_of(member), " sends malformed data to ", phases_.name_of(rank),
                     ": got blocks in the line, expected them in the slot, because the group has ",
                     inputs_.size(), " ranks")));
  }
  char line[kLineBytes];
  std::memcpy(line, phases_.line(member).bytes, sizeof line);
  const auto size_at = [&](int reader) {
    return static_cast<uint8_t>(line[sizeof(uint64_t) + static_cast<std::size_t>(reader)]);
  };
  std::size_t begin = sizeof(uint64_t) + inputs_.size();
  for (int reader = 0; reader < rank; ++reader) begin += size_at(reader);
  const std::size_t size = size_at(rank);
  GRADWIRE_RETURN_IF_ERROR(check(member, size));
  if (begin + size > kLineBytes) {
    return phases_.fail(absl::InvalidArgumentError(absl::StrCat(
        phases_.name_of(member), " sends malformed data to ", phases_.name_of(rank), ": got a block of ",
        size, " bytes at position ", begin, ", expected it within ", kLineBytes, " bytes")));
  }
  copy_bytes(outputs_[member].data, line + begin, size);
  return absl::OkStatus();
}

absl::Status HostAllToAll::read_slot(int member, std::size_t offset) {
  const char* const part = phases_.slot(member) + static_cast<std::size_t>(phases_.rank()) * part_bytes_;
  GRADWIRE_RETURN_IF_ERROR(check(member, first_word(part)));
  const Span piece = piece_of(outputs_[member], offset, room());
  copy_bytes(piece.data, part + kHeaderBytes, piece.size);
  return absl::OkStatus();
}

absl::Status HostAllToAll::check(int member, uint64_t theirs) {
  if (theirs == outputs_[member].size) return absl::OkStatus();
  const std::string reader = phases_.name_of(phases_.rank());
  return phases_.fail(
      absl::InvalidArgumentError(absl::StrCat(phases_.name_of(member), " sends ", theirs, " bytes to ",
                                              reader, ", which expects ", outputs_[member].size)));
}

// Each operation of HostGroup copies this member's part for itself after it has published, because the other
// members do not need it.

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
