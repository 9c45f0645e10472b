#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/host_phases.h"
#include "gradwire/collectives/cpu/span.h"

namespace gradwire::collectives::cpu {

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
