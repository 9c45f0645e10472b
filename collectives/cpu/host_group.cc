#include "gradwire/collectives/cpu/host_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/base/error.h"

// Joining, and the operations on one piece of data for all.
namespace gradwire::collectives::cpu {
namespace {

// Measured on two cores, with two ranks and with four (bench suite collectives).
constexpr std::size_t kFlatBytes = std::size_t{2} << 10;
constexpr std::size_t kNearBytes = std::size_t{16} << 10;
constexpr std::size_t kFlatBytesOfTwo = std::size_t{8} << 10;

}  // namespace

HostGroup::HostGroup(Options options, std::unique_ptr<HostMemory> memory)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      rank_(options_.memory.index),
      size_(options_.memory.size),
      turns_(*memory_, rank_, size_, options_.names) {}

absl::StatusOr<std::unique_ptr<HostGroup>> HostGroup::join(Options options) {
  if (options.flat_bytes == 0) options.flat_bytes = options.memory.size <= 2 ? kFlatBytesOfTwo : kFlatBytes;
  constexpr std::size_t kPage = 4096, kMostSlotBytes = std::size_t{64} << 20;
  // A slot has a part for each member, which has to hold something.
  constexpr std::size_t kLeastPart = 64;
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
  GRADWIRE_RETURN_IF_ERROR(turns_.begin(deadline));
  turns_.publish();
  return turns_.wait_all_published(deadline);
}

absl::StatusOr<uint64_t> HostGroup::largest(uint64_t mine, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(turns_.begin(deadline));
  std::memcpy(turns_.line(rank_).bytes, &mine, sizeof mine);
  turns_.publish();
  GRADWIRE_RETURN_IF_ERROR(turns_.wait_all_published(deadline));
  uint64_t most = mine;
  for (int member = 0; member < size_; ++member) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, turns_.line(member).bytes, sizeof theirs);
    most = std::max(most, theirs);
  }
  return most;
}

absl::Status HostGroup::broadcast(Span data, int root, absl::Time deadline) {
  return in_pieces(data.size, memory_->slot_bytes(),
                   [&](std::size_t offset, std::size_t length) -> absl::Status {
                     GRADWIRE_RETURN_IF_ERROR(turns_.begin(deadline));
                     if (rank_ == root) copy_bytes(turns_.slot(rank_), data.part(offset, 0).data, length);
                     turns_.publish();
                     if (rank_ == root) return absl::OkStatus();
                     GRADWIRE_RETURN_IF_ERROR(turns_.wait_published(root, deadline));
                     copy_bytes(data.part(offset, 0).data, turns_.slot(root), length);
                     return absl::OkStatus();
                   });
}

absl::Status HostGroup::reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) {
  std::vector<int> others;
  for (int member = 0; member < size_; ++member) {
    if (member != root) others.push_back(member);
  }
  const std::size_t room = memory_->slot_bytes() / reducer.element_size() * reducer.element_size();
  return in_pieces(data.size, room, [&](std::size_t offset, std::size_t length) -> absl::Status {
    GRADWIRE_RETURN_IF_ERROR(turns_.begin(deadline));
    if (rank_ != root) copy_bytes(turns_.slot(rank_), data.part(offset, 0).data, length);
    turns_.publish();
    if (rank_ != root) return absl::OkStatus();
    for (int member : others) {
      GRADWIRE_RETURN_IF_ERROR(turns_.wait_published(member, deadline));
      reducer.reduce(data.part(offset, 0).data, turns_.slot(member), length);
    }
    return absl::OkStatus();
  });
}

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

// The same order of operands everywhere: ranks ascending.
absl::Status HostGroup::all_reduce_inline(Span data, const Reducer& reducer, absl::Time deadline) {
  if (absl::Status status = turns_.begin(deadline); !status.ok()) return status;
  copy_bytes(turns_.line(rank_).bytes, data.data, data.size);
  turns_.publish();
  if (absl::Status status = turns_.wait_all_published(deadline); !status.ok()) return status;
  alignas(16) char sum[HostMemory::kInlineBytes];
  copy_bytes(sum, turns_.line(0).bytes, data.size);
  for (int member = 1; member < size_; ++member) {
    reducer.reduce(sum, turns_.line(member).bytes, data.size);
  }
  copy_bytes(data.data, sum, data.size);
  return absl::OkStatus();
}

absl::Status HostGroup::all_reduce_flat(Span data, const Reducer& reducer, absl::Time deadline) {
  if (absl::Status status = turns_.begin(deadline); !status.ok()) return status;
  copy_bytes(turns_.slot(rank_), data.data, data.size);
  turns_.publish();
  for (int member = 0; member < size_; ++member) {
    if (member != rank_) {
      if (absl::Status status = turns_.wait_published(member, deadline); !status.ok()) return status;
    }
    if (member == 0) continue;
    reducer.combine(data.data, member == 1 ? (rank_ == 0 ? data.data : turns_.slot(0)) : data.data,
                    member == 1 && rank_ == 1 ? data.data : turns_.slot(member), data.size);
  }
  return absl::OkStatus();
}

// Each reduces its share into its slot of the next turn, from which the others take it.
absl::Status HostGroup::all_reduce_two_phase(Span data, const Reducer& reducer, absl::Time deadline) {
  const std::size_t element = reducer.element_size();
  const std::size_t count = data.size / element;
  const auto first_of = [&](int member) { return count * member / size_ * element; };
  const std::size_t mine = first_of(rank_), end = first_of(rank_ + 1);
  GRADWIRE_RETURN_IF_ERROR(turns_.begin(deadline));
  // All but the share that nobody else reads.
  copy_bytes(turns_.slot(rank_), data.data, mine);
  copy_bytes(turns_.slot(rank_) + end, data.part(end, 0).data, data.size - end);
  turns_.publish();
  // Nobody reads that slot any more: all have begun this turn when this share is reduced.
  char* const reduced = turns_.next_slot();
  GRADWIRE_RETURN_IF_ERROR(turns_.wait_all_published(deadline));
  if (size_ == 1) return absl::OkStatus();
  const auto part = [&](int member, std::size_t offset) {
    return (member == rank_ ? static_cast<char*>(data.data) : turns_.slot(member)) + offset;
  };
  // In parts that stay in the nearest cache between being reduced and being copied.
  const std::size_t step = kNearBytes / element * element;
  for (std::size_t at = mine; at < end; at += step) {
    const std::size_t length = std::min(step, end - at);
    char* const to = reduced + (at - mine);
    reducer.combine(to, part(0, at), part(1, at), length);
    for (int member = 2; member < size_; ++member) reducer.reduce(to, part(member, at), length);
    copy_bytes(data.part(at, 0).data, to, length);
  }
  GRADWIRE_RETURN_IF_ERROR(turns_.begin(deadline));
  turns_.publish();
  for (int distance = 1; distance < size_; ++distance) {
    const int member = (rank_ + distance) % size_;
    GRADWIRE_RETURN_IF_ERROR(turns_.wait_published(member, deadline));
    copy_bytes(data.part(first_of(member), 0).data, turns_.slot(member),
               first_of(member + 1) - first_of(member));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::cpu
