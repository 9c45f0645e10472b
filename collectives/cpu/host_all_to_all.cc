// A member's line in the first phase: the size of its largest block (8 bytes) with kInLine in the highest bit
// if the blocks are in the line; then, for each reader, the size of its block (1 byte); then the blocks. The
// member's block for itself is not there.

#include "gradwire/collectives/cpu/host_all_to_all.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/host_memory.h"

namespace gradwire::collectives::cpu {
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

}  // namespace gradwire::collectives::cpu
