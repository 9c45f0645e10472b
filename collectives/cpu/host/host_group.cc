#include "gradwire/collectives/cpu/host/host_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/base/error.h"

// Joining, the barrier, broadcast and the reductions. Each operation splits its data into pieces that fit a
// slot, and exchanges a piece in one phase, or in two (HostPhases). A writer never waits for its readers: the
// begin() of a later phase does that. So a root returns as soon as its last piece is published.
namespace gradwire::collectives::cpu {
namespace {

// Sizes at which the algorithm changes. Measured on two cores, with two ranks and with four (bench suite
// collectives).
constexpr std::size_t kFlatBytes = std::size_t{2} << 10;
constexpr std::size_t kFlatBytesOfTwo = std::size_t{8} << 10;

}  // namespace

HostGroup::HostGroup(Options options, std::unique_ptr<HostMemory> memory)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      rank_(options_.memory.index),
      size_(options_.memory.size),
      phases_(*memory_, rank_, size_, options_.names) {}

absl::StatusOr<std::unique_ptr<HostGroup>> HostGroup::join(Options options) {
  if (options.flat_bytes == 0) options.flat_bytes = options.memory.size <= 2 ? kFlatBytesOfTwo : kFlatBytes;
  // slot_bytes may come from the options of a user, so it is clamped and rounded up to whole pages.
  constexpr std::size_t kPage = 4096, kMostSlotBytes = std::size_t{64} << 20;
  // A slot has a part for each member, and each part needs this many bytes at least.
  constexpr std::size_t kLeastPart = 2 * kLineBytes;
  const std::size_t least = std::max(kPage, kLeastPart * static_cast<std::size_t>(options.memory.size));
  options.memory.slot_bytes =
      (std::clamp(options.memory.slot_bytes, least, std::max(least, kMostSlotBytes)) + kPage - 1) / kPage *
      kPage;
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory, HostMemory::join(options.memory));
  return std::unique_ptr<HostGroup>(new HostGroup(std::move(options), std::move(memory)));
}

absl::Status HostGroup::in_pieces(std::size_t bytes, std::size_t room,
                                  absl::FunctionRef<absl::Status(std::size_t, std::size_t)> piece) {
  std::size_t offset = 0;
  do {
    const std::size_t length = std::min(room, bytes - offset);
    GRADWIRE_RETURN_IF_ERROR(piece(offset, length));
    offset += length;
  } while (offset < bytes);
  return absl::OkStatus();
}

absl::Status HostGroup::barrier(absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
  phases_.publish();
  return phases_.wait_all_published(deadline);
}

absl::Status HostGroup::broadcast(Span data, int root, absl::Time deadline) {
  return in_pieces(data.size, memory_->slot_bytes(),
                   [&](std::size_t offset, std::size_t length) -> absl::Status {
                     GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
                     if (rank_ == root) phases_.write(data.part(offset, length));
                     phases_.publish();
                     if (rank_ == root) return absl::OkStatus();
                     GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(root, deadline));
                     copy_bytes(data.part(offset, 0).data, phases_.data(root, length), length);
                     return absl::OkStatus();
                   });
}

absl::Status HostGroup::reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) {
  // A piece must not split an element.
  const std::size_t room = memory_->slot_bytes() / reducer.element_size() * reducer.element_size();
  return in_pieces(data.size, room, [&](std::size_t offset, std::size_t length) -> absl::Status {
    GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
    if (rank_ != root) phases_.write(data.part(offset, length));
    phases_.publish();
    if (rank_ != root) return absl::OkStatus();
    for (int member = 0; member < size_; ++member) {
      if (member == root) continue;
      GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
      reducer.reduce(data.part(offset, 0).data, phases_.data(member, length), length);
    }
    return absl::OkStatus();
  });
}

// The algorithm depends on the size:
// - Up to a cache line: the data is in the line of the phase number, so reading the number fetches it.
// - Up to flat_bytes: one phase. Each member reduces everything, which is less work than a second phase.
// - Longer: two phases. Each member reduces its share, so the work is split among the members.
absl::Status HostGroup::all_reduce(Span data, const Reducer& reducer, absl::Time deadline) {
  if (data.size <= HostMemory::kInlineBytes) return all_reduce_inline(data, reducer, deadline);
  if (data.size <= std::min(options_.flat_bytes, memory_->slot_bytes())) {
    return all_reduce_flat(data, reducer, deadline);
  }
  const std::size_t room = memory_->slot_bytes() / reducer.element_size() * reducer.element_size();
  return in_pieces(data.size, room, [&](std::size_t offset, std::size_t length) {
    return all_reduce_two_phase(data.part(offset, length), reducer, deadline);
  });
}

// All members use the same order of operands, ranks ascending, so that they get the same bits.
absl::Status HostGroup::all_reduce_inline(Span data, const Reducer& reducer, absl::Time deadline) {
  if (absl::Status status = phases_.begin(deadline); !status.ok()) return status;
  copy_bytes(phases_.line(rank_).bytes, data.data, data.size);
  phases_.publish();
  if (absl::Status status = phases_.wait_all_published(deadline); !status.ok()) return status;
  alignas(16) char sum[HostMemory::kInlineBytes];
  copy_bytes(sum, phases_.line(0).bytes, data.size);
  for (int member = 1; member < size_; ++member) {
    reducer.reduce(sum, phases_.line(member).bytes, data.size);
  }
  copy_bytes(data.data, sum, data.size);
  return absl::OkStatus();
}

// Every member reduces all data itself, in the order of ranks. After the first combination `data` holds the
// partial result, so a member's own input is then read from its slot.
absl::Status HostGroup::all_reduce_flat(Span data, const Reducer& reducer, absl::Time deadline) {
  if (absl::Status status = phases_.begin(deadline); !status.ok()) return status;
  phases_.write(data);
  phases_.publish();
  for (int member = 0; member < size_; ++member) {
    if (member != rank_) {
      if (absl::Status status = phases_.wait_published(member, deadline); !status.ok()) return status;
    }
    if (member == 0) continue;
    const auto written = [&](int of) { return phases_.data(of, data.size); };
    reducer.combine(data.data, member == 1 ? (rank_ == 0 ? data.data : written(0)) : data.data,
                    member == 1 && rank_ == 1 ? data.data : written(member), data.size);
  }
  return absl::OkStatus();
}

// The sum is made in memory of this member and copied from there. The reducer could write to the slot itself,
// but its stores would first fetch the lines of the slot from the members that read them.
void HostGroup::reduce_parts(
    const Reducer& reducer, std::size_t bytes, absl::FunctionRef<const char*(int, std::size_t)> part,
    absl::FunctionRef<void(std::size_t at, const char* sum, std::size_t length)> take) {
  const std::size_t step = kNearBytes / reducer.element_size() * reducer.element_size();
  for (std::size_t at = 0; at < bytes; at += step) {
    const std::size_t length = std::min(step, bytes - at);
    reducer.combine(near_.data(), part(0, at), part(1, at), length);
    for (int member = 2; member < size_; ++member) reducer.reduce(near_.data(), part(member, at), length);
    take(at, near_.data(), length);
  }
}

// Two phases:
// 1. Every member publishes its data, and reduces its share of all members' data into its slot of the next
//    phase.
// 2. Every member publishes its reduced share, and copies the shares of the others.
absl::Status HostGroup::all_reduce_two_phase(Span data, const Reducer& reducer, absl::Time deadline) {
  const std::size_t element = reducer.element_size();
  const std::size_t count = data.size / element;
  const auto first_of = [&](int member) { return count * member / size_ * element; };
  const std::size_t mine = first_of(rank_), end = first_of(rank_ + 1);
  GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
  // Each share is read by one member. Nobody reads this member's own, so it is not copied.
  for (int member = 0; member < size_; ++member) {
    if (member == rank_) continue;
    const std::size_t first = first_of(member);
    phases_.copy_for(member, phases_.slot(rank_) + first, data.part(first, 0).data,
                     first_of(member + 1) - first);
  }
  phases_.publish();
  // The slot of the next phase is free: when this share is reduced, all members have published in this phase,
  // so they have finished the one before, which used that slot.
  char* const reduced = phases_.next_slot();
  GRADWIRE_RETURN_IF_ERROR(phases_.wait_all_published(deadline));
  // With one member, `data` is the result already, and part(1) does not exist.
  if (size_ == 1) return absl::OkStatus();
  const auto part = [&](int member, std::size_t at) {
    return (member == rank_ ? static_cast<char*>(data.data) : phases_.slot(member)) + mine + at;
  };
  reduce_parts(reducer, end - mine, part, [&](std::size_t at, const char* sum, std::size_t length) {
    phases_.copy_for_all(reduced + at, sum, length);
    copy_bytes(part(rank_, at), sum, length);
  });
  GRADWIRE_RETURN_IF_ERROR(phases_.begin(deadline));
  phases_.publish();
  for (int distance = 1; distance < size_; ++distance) {
    const int member = (rank_ + distance) % size_;
    GRADWIRE_RETURN_IF_ERROR(phases_.wait_published(member, deadline));
    copy_bytes(data.part(first_of(member), 0).data, phases_.slot(member),
               first_of(member + 1) - first_of(member));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::cpu
