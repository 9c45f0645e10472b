#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/host/host_phases.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"

namespace gradwire::collectives::cpu {

// One all_gather of a HostGroup.
//
// The members' blocks may have different sizes. Each member knows the sizes of all blocks from its list of
// outputs, but the lists of two members may contradict each other. All members must execute the same number
// of phases nevertheless. So:
// 1. In the first phase, publish the size of this member's block in its line, with the first piece of the
//    block. The largest published size gives the number of phases, whatever the lists say.
// 2. In each later phase, exchange one more piece of every block that has not ended.
// 3. Compare the size that each member published with the size of its entry in the list. After a difference
//    this member reads no more, but takes part in the remaining phases. So the group stays usable, and
//    members whose lists are right do not notice.
// The block of this member is copied directly.
class HostAllGather {
 public:
  HostAllGather(HostPhases& phases, std::size_t slot_bytes, Span data, absl::Span<const Span> outputs)
      : phases_(phases), slot_bytes_(slot_bytes), data_(data), outputs_(outputs) {}

  // Errors: as ByteCollectives::all_gather.
  absl::Status run(absl::Time deadline);

 private:
  // The size of the block. It is the first word of a line.
  using Word = uint64_t;
  // A block up to this size is in the line, behind its size.
  static constexpr std::size_t kRoomInLine = HostMemory::kInlineBytes - sizeof(Word);

  // Where a member's piece is in the current phase, given the size of the whole block.
  char* place_of(int member, std::size_t block) const {
    return block <= kRoomInLine ? phases_.line(member).bytes + sizeof(Word) : phases_.slot(member);
  }
  // The part of a block from `offset` on that one phase exchanges.
  Span piece_of(const Span& block, std::size_t offset) const;
  void write(std::size_t offset);
  absl::Status read(int member, std::size_t offset, absl::Time deadline);
  absl::Status check(int member, Word theirs) const;

  HostPhases& phases_;
  const std::size_t slot_bytes_;
  const Span data_;
  const absl::Span<const Span> outputs_;
  // The largest block that any member has published.
  Word most_ = 0;
  // InvalidArgument after a size has differed from this member's list.
  absl::Status differs_;
};

// One all_to_all of a HostGroup.
//
// Members may exchange blocks of different sizes, and no member knows the sizes of the others' blocks. All of
// them must execute the same number of phases. So:
// 1. In the first phase, publish the size of this member's largest block together with the first piece of
//    every block. The largest block of all members gives the number of phases. If all blocks of this member
//    fit into its line, they are there and not in its slot.
// 2. In each later phase, exchange one more piece of every block. A block that has ended takes part with an
//    empty piece.
// 3. Compare the size that the writer has with the size that the reader expects, in every phase. A difference
//    breaks the group: the other members are in the middle of the operation.
// The block of this member for itself is copied directly.
class HostAllToAll {
 public:
  // `part_bytes`: size of the part of a slot for one reader.
  HostAllToAll(HostPhases& phases, std::size_t part_bytes, absl::Span<const Span> outputs,
               absl::Span<const Span> inputs)
      : phases_(phases), part_bytes_(part_bytes), outputs_(outputs), inputs_(inputs) {}

  absl::Status run(absl::Time deadline);

 private:
  // The part of a slot begins with the size of the whole block.
  static constexpr std::size_t kHeaderBytes = 64;

  std::size_t room() const { return part_bytes_ - kHeaderBytes; }
  // Size of the block for `member` in this member's line.
  std::size_t line_size(int member) const;
  // Whether all blocks of this member for others fit into its line.
  bool fits_line() const;
  void write_line();
  void write_slot(std::size_t offset);
  absl::Status read_line(int member);
  absl::Status read_slot(int member, std::size_t offset);
  absl::Status check(int member, uint64_t theirs);

  HostPhases& phases_;
  const std::size_t part_bytes_;
  const absl::Span<const Span> outputs_;
  const absl::Span<const Span> inputs_;
};

}  // namespace gradwire::collectives::cpu
