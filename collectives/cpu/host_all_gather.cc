#include "gradwire/collectives/cpu/host_all_gather.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

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

}  // namespace gradwire::collectives::cpu
