#include "gradwire/transport/shm/memory/arena_peer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::transport {

ArenaPeer::ArenaPeer(std::size_t max_bytes) : max_bytes_(max_bytes) {}

ArenaPeer::Segment::Segment(SharedMemory mapped, const SegmentPacket& packet, std::shared_ptr<Total> counted)
    : memory(std::move(mapped)),
      block_bytes(packet.block_bytes),
      blocks(packet.blocks),
      total(std::move(counted)) {
  total->bytes.fetch_add(memory.size(), std::memory_order_relaxed);
  total->segments.fetch_add(1, std::memory_order_relaxed);
}

ArenaPeer::Segment::~Segment() {
  total->bytes.fetch_sub(memory.size(), std::memory_order_relaxed);
  total->segments.fetch_sub(1, std::memory_order_relaxed);
}

absl::Status ArenaPeer::add(const SegmentPacket& packet, const Descriptor& descriptor) {
  if (!is_segment(packet) || segments_.contains(packet.segment)) {
    return absl::InvalidArgumentError(absl::StrCat("invalid arena segment: id ", packet.segment, ", ",
                                                   packet.bytes, " bytes for ", packet.blocks, " blocks of ",
                                                   packet.block_bytes));
  }
  // The total also counts dropped segments whose blocks are still in use. Otherwise a hostile sender could
  // make this process map any amount by announcing and dropping segments.
  const std::size_t mapped = total_->bytes.load(std::memory_order_relaxed);
  if (mapped > max_bytes_ || packet.bytes > max_bytes_ - mapped ||
      total_->segments.load(std::memory_order_relaxed) >= kMaxSegments) {
    return absl::InvalidArgumentError(absl::StrCat("an arena segment of ", packet.bytes, " bytes, with ",
                                                   mapped, " bytes mapped,",
                                                   " is over the limit max_arena_bytes = ", max_bytes_));
  }
  GRADWIRE_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::adopt(descriptor, packet.bytes,
                                                                     wants_huge_pages(packet.block_bytes)));
  segments_.emplace(packet.segment, std::make_shared<Segment>(std::move(memory), packet, total_));
  return absl::OkStatus();
}

absl::Status ArenaPeer::drop(uint32_t segment) {
  if (segments_.erase(segment) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot drop the unknown arena segment ", segment));
  }
  return absl::OkStatus();
}

absl::StatusOr<Buffer> ArenaPeer::take(uint64_t name, uint64_t size) const {
  const BlockName block = BlockName::decode(name);
  auto found = segments_.find(block.segment);
  if (found == segments_.end() || block.index >= found->second->blocks || size == 0 ||
      size > found->second->block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("unknown arena block: index ", block.index, " of segment ",
                                                   block.segment, ", ", size, " bytes"));
  }
  const std::shared_ptr<Segment>& segment = found->second;
  char* const data = segment->memory.data() + block.index * segment->block_bytes;
  char* const mark = block_mark(segment->memory.data(), segment->block_bytes, segment->blocks, block.index);
  // Foreign: a hostile sender can change the bytes at any time, so code that checks them must copy them
  // first.
  return Buffer(data, size, std::shared_ptr<void>(data, Use{segment, mark, name}), Buffer::Sharing::kForeign);
}

// Runs on any thread, perhaps after the end of the connection: `segment` keeps the mapping. Release: pairs
// with the acquire in ArenaOwner::reclaim_locked().
void ArenaPeer::Use::operator()(void*) const {
  if (!sent_back) shared_word<uint32_t>(mark).store(1, std::memory_order_release);
}

// No other thread can begin to use the buffer meanwhile: the caller has its only owner. A borrowed buffer
// belongs to the program after the call.
absl::optional<uint64_t> ArenaPeer::claim(const Buffer& buffer) const {
  Use* const use = std::get_deleter<Use>(buffer.owner());
  if (use == nullptr || buffer.owner().use_count() != 1) return absl::nullopt;
  // Another thread may have dropped the last but one owner just now. What it did with the memory before must
  // be visible here.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (use->segment->total != total_ || use->sent_back || buffer.sharing() == Buffer::Sharing::kBorrowed ||
      buffer.data() != buffer.owner().get() || buffer.size() == 0 ||
      buffer.size() > use->segment->block_bytes) {
    return absl::nullopt;
  }
  use->sent_back = true;
  return use->name;
}

}  // namespace gradwire::transport
