#include "gradwire/transport/shm/memory/arena_peer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/file_size_limit.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {

ArenaPeer::ArenaPeer(std::size_t max_bytes) : max_bytes_(max_bytes) {}

ArenaPeer::Segment::Segment(const SegmentPacket& packet, std::shared_ptr<Total> counted)
    : bytes(packet.bytes), block_bytes(packet.block_bytes), blocks(packet.blocks), total(std::move(counted)) {
  total->bytes.fetch_add(bytes, std::memory_order_relaxed);
  total->segments.fetch_add(1, std::memory_order_relaxed);
}

void ArenaPeer::Segment::end_claim() {
  if (claims.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  total->bytes.fetch_sub(bytes, std::memory_order_relaxed);
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
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::adopt(descriptor, packet.bytes, wants_huge_pages(packet.block_bytes));
  Descriptor kept;
  if (!memory.ok()) {
    if (!is_local_shortage(memory.status())) return memory.status();
    kept = Descriptor::from([&] { return ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0); });
    if (!kept.valid()) return memory.status();
  }
  const auto segment = std::make_shared<Segment>(packet, total_);
  if (memory.ok()) segment->memory.emplace(*std::move(memory));
  segment->unmapped = std::move(kept);
  segments_.emplace(packet.segment, segment);
  return absl::OkStatus();
}

absl::Status ArenaPeer::drop(uint32_t segment) {
  auto found = segments_.find(segment);
  if (found == segments_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot drop the unknown arena segment ", segment));
  }
  found->second->end_claim();
  segments_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<Buffer> ArenaPeer::take(uint64_t name, uint64_t size, BufferPool& pool) {
  const BlockName block = BlockName::decode(name);
  auto found = segments_.find(block.segment);
  if (found == segments_.end() || block.index >= found->second->blocks || size == 0 ||
      size > found->second->block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("unknown arena block: index ", block.index, " of segment ",
                                                   block.segment, ", ", size, " bytes"));
  }
  const std::shared_ptr<Segment>& segment = found->second;
  if (!segment->memory.has_value()) {
    absl::StatusOr<SharedMemory> memory =
        SharedMemory::adopt(segment->unmapped, segment->bytes, wants_huge_pages(segment->block_bytes));
    if (!memory.ok()) return copy(*segment, block.index, size, pool);
    segment->memory.emplace(*std::move(memory));
    segment->unmapped.reset();
  }
  char* const start = segment->memory->data();
  char* const data = start + block.index * segment->block_bytes;
  char* const mark = block_mark(start, segment->block_bytes, segment->blocks, block.index);
  segment->claims.fetch_add(1, std::memory_order_relaxed);
  // Foreign: a hostile sender can change the bytes at any time, so code that checks them must copy them
  // first.
  return Buffer(data, size, std::shared_ptr<void>(data, Use{segment, mark, name}), Buffer::Sharing::kForeign);
}

// The file is read instead of the memory. The block is released in any case, because nobody uses it later.
absl::StatusOr<Buffer> ArenaPeer::copy(const Segment& segment, uint32_t index, uint64_t size,
                                       BufferPool& pool) {
  absl::StatusOr<Buffer> buffer = pool.allocate(size);
  for (uint64_t read = 0; buffer.ok() && read < size;) {
    const ssize_t part = ::pread(segment.unmapped.get(), static_cast<char*>(buffer->data()) + read,
                                 size - read, static_cast<off_t>(index * segment.block_bytes + read));
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) buffer = system_status("cannot read a segment of shared memory", part < 0 ? errno : EIO);
    if (part > 0) read += static_cast<uint64_t>(part);
  }
  // As Use::operator()(): the mark follows the last read.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t released = 1;
  const std::size_t mark = mark_offset(segment.block_bytes, segment.blocks, index);
  // If that fails, the block is lost for the peer until it drops the segment.
  const NoFileSizeSignal no_signal;
  (void)!::pwrite(segment.unmapped.get(), &released, sizeof(released), static_cast<off_t>(mark));
  return buffer;
}

// Runs on any thread, perhaps after the end of the connection: `segment` keeps the mapping.
// 1. Take the use out of the account. The peer may drop the segment and announce another one as soon as
//    it sees the mark; this thread may stand still for any time after step 2.
// 2. Store the mark. Release: pairs with the acquire in ArenaOwner::reclaim_locked().
// 3. Drop the mapping here rather than in the destructor of this object, which a weak_ptr to the owner of the
//    buffer delays.
//
// In a forked child nothing is stored: the buffer of the parent is still in use.
void ArenaPeer::Use::operator()(void*) {
  if (!sent_back && segment->mark.here()) {
    segment->end_claim();
    shared_word<uint32_t>(mark).store(1, std::memory_order_release);
  }
  segment.reset();
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
  // The peer may drop the segment as soon as it reads the message that names the block.
  use->segment->end_claim();
  return use->name;
}

}  // namespace gradwire::transport
