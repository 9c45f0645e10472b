// The life of a block, and what makes its reuse safe although two processes access it:
// 1. take() or lease() chooses a free block. The program or the connection fills it.
// 2. commit() or claim() sets its mark to 0. The record of the message, which is published in the ring
//    later and with release, carries the mark and the bytes to the receiver.
// 3. The receiver uses the block, then stores 1 to the mark with release (arena_peer.cc).
// 4. reclaim_locked() loads the mark with acquire. So all reads of the receiver are over before the block
//    is filled again.
//
// If the receiver sends the block back instead of step 3, the record of that message carries its stores to
// this process. From then on the mark is not read, until the block is sent again.
//
// A receiver that never stores 1 only keeps its blocks from being used again. One that stores 1 too early
// reads wrong bytes. Neither harms this process.

#include "gradwire/transport/shm/memory/arena_owner.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/bits.h"
#include "gradwire/transport/shm/memory/ring.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kSmallestBlock = 4'096;
constexpr std::size_t kPage = 4'096;
// Size of a segment of small blocks. Blocks of this size are two to a segment; larger blocks have a segment
// each.
constexpr std::size_t kSegmentTarget = std::size_t{1} << 20;
// Number of sent blocks whose marks are checked in a search. Each check may cost a cache miss. The newest
// blocks are checked because their pages and lines are the warmest, and some of the others in turn.
constexpr std::size_t kNewest = 2;
constexpr std::size_t kOthers = 16;
// While searches fail, one search in this number checks all sent blocks.
constexpr uint32_t kSearchesPerFullOne = 64;

struct ClassOfSize {
  int index;
  std::size_t bytes;
};

// There are four classes for each doubling of the size.
ClassOfSize class_of(std::size_t size) {
  if (size <= kSmallestBlock) return {0, kSmallestBlock};
  const int power = absl::bit_width(size - 1) - 1;
  const std::size_t step = (std::size_t{1} << power) / 4;
  const std::size_t quarter = (size - 1 - (std::size_t{1} << power)) / step;
  return {1 + (power - 12) * 4 + static_cast<int>(quarter), (std::size_t{1} << power) + (quarter + 1) * step};
}

std::size_t blocks_in_segment(std::size_t block_bytes) {
  if (block_bytes == kSegmentTarget) return 2;
  return std::max<std::size_t>(1, kSegmentTarget / block_bytes);
}

std::size_t segment_bytes(std::size_t block_bytes) {
  return (blocks_in_segment(block_bytes) * (block_bytes + kLineBytes) + kPage - 1) / kPage * kPage;
}

}  // namespace

ArenaOwner::ArenaOwner(Options options) : options_(std::move(options)) {}

ArenaOwner::~ArenaOwner() {
  MutexLock lock(mutex_);
  set_mapped_locked(0);
}

// Sets the size of all segments of this arena, and adds the difference to that of all arenas.
void ArenaOwner::set_mapped_locked(std::size_t bytes) {
  if (options_.all_mapped_bytes != nullptr) {
    options_.all_mapped_bytes->fetch_add(static_cast<int64_t>(bytes) - static_cast<int64_t>(mapped_bytes_),
                                         std::memory_order_relaxed);
  }
  if (options_.all_arenas != nullptr) {
    options_.all_arenas->fetch_add(static_cast<int64_t>(bytes > 0) - static_cast<int64_t>(mapped_bytes_ > 0),
                                   std::memory_order_relaxed);
  }
  mapped_bytes_ = bytes;
}

absl::optional<ArenaBlock> ArenaOwner::take(std::size_t size) {
  MutexLock lock(mutex_);
  const absl::optional<BlockRef> block = take_locked(size, State::kTaken);
  if (!block.has_value()) return absl::nullopt;
  return ArenaBlock{data_of(*block), BlockName{block->segment->id, block->index}.encode()};
}

void ArenaOwner::commit(const ArenaBlock& block) {
  MutexLock lock(mutex_);
  Segment* const segment = find_locked(block.name);
  if (segment != nullptr) release_locked(*segment, BlockName::decode(block.name).index, State::kSent);
}

absl::optional<Buffer> ArenaOwner::lease(std::size_t size) {
  Lease lease;
  {
    MutexLock lock(mutex_);
    const absl::optional<BlockRef> block = take_locked(size, State::kLeased);
    if (!block.has_value()) return absl::nullopt;
    lease = begin_lease_locked(*block);
  }
  return buffer_over(std::move(lease), size, Buffer::Sharing::kOwned);
}

ArenaOwner::Lease ArenaOwner::begin_lease_locked(const BlockRef& block) {
  return {data_of(block), LeaseEnd{shared_from_this(), BlockName{block.segment->id, block.index}.encode(),
                                   ++block.segment->blocks[block.index].lease}};
}

Buffer ArenaOwner::buffer_over(Lease lease, std::size_t size, Buffer::Sharing sharing) {
  return Buffer(lease.data, size, std::shared_ptr<void>(lease.data, std::move(lease.end)), sharing);
}

// The name comes from the other process, so everything that it refers to is checked.
absl::optional<Buffer> ArenaOwner::take_back(uint64_t name, std::size_t size) {
  Lease lease;
  {
    MutexLock lock(mutex_);
    Segment* const segment = closed_ ? nullptr : find_locked(name);
    const uint32_t index = BlockName::decode(name).index;
    if (segment == nullptr || index >= segment->blocks.size() || size == 0 || size > segment->block_bytes ||
        segment->blocks[index].state != State::kSent) {
      return absl::nullopt;
    }
    remove_sent_locked(classes_[segment->size_class], segment->blocks[index].sent_at);
    segment->blocks[index].state = State::kLeased;
    ++segment->held_blocks;
    segment->used_lately = true;
    lease = begin_lease_locked({segment, index});
  }
  // Foreign: the other process can still change the bytes.
  return buffer_over(std::move(lease), size, Buffer::Sharing::kForeign);
}

void ArenaOwner::remove_sent_locked(SizeClass& blocks, std::size_t at) {
  const BlockRef last = blocks.sent.back();
  last.segment->blocks[last.index].sent_at = static_cast<uint32_t>(at);
  blocks.sent[at] = last;
  blocks.sent.pop_back();
}

// No other thread can begin to use the buffer meanwhile: the caller has its only owner.
absl::optional<ArenaBlock> ArenaOwner::claim(const Buffer& buffer) {
  const LeaseEnd* const end = std::get_deleter<LeaseEnd>(buffer.owner());
  if (end == nullptr || end->arena.get() != this || buffer.owner().use_count() != 1 ||
      buffer.sharing() == Buffer::Sharing::kBorrowed || buffer.data() != buffer.owner().get()) {
    return absl::nullopt;
  }
  MutexLock lock(mutex_);
  Segment* const segment = closed_ ? nullptr : find_locked(end->name);
  const uint32_t index = BlockName::decode(end->name).index;
  if (segment == nullptr || segment->blocks[index].state != State::kLeased ||
      segment->blocks[index].lease != end->lease || buffer.size() > segment->block_bytes) {
    return absl::nullopt;
  }
  const ArenaBlock block{buffer.data(), end->name};
  release_locked(*segment, index, State::kSent);
  return block;
}

void ArenaOwner::end_lease(uint64_t name, uint32_t lease) {
  MutexLock lock(mutex_);
  Segment* const segment = find_locked(name);
  if (segment == nullptr) return;
  const uint32_t index = BlockName::decode(name).index;
  // The owner of a claimed buffer still runs this when it is destroyed. By then the block may have been
  // leased again, which its number of leases shows.
  if (segment->blocks[index].state != State::kLeased || segment->blocks[index].lease != lease) return;
  release_locked(*segment, index, State::kFree);
}

std::size_t ArenaOwner::max_idle_locked() const {
  if (unused_trims_ >= kTrimsUntilEmpty) return 0;
  const int64_t arenas =
      options_.all_arenas == nullptr ? 1 : options_.all_arenas->load(std::memory_order_relaxed);
  return std::min(options_.max_idle_bytes,
                  options_.max_idle_bytes_of_all / static_cast<std::size_t>(std::max<int64_t>(1, arenas)));
}

bool ArenaOwner::trim() {
  MutexLock lock(mutex_);
  if (closed_) return false;
  reclaim_all_locked();
  std::size_t idle = 0;
  bool used = false;
  std::vector<Segment*> unused;
  for (const auto& [id, segment] : segments_) {
    if (segment->free_blocks == segment->blocks.size()) {
      idle += segment->memory.size();
      if (!segment->used_lately) unused.push_back(segment.get());
    }
    used = used || segment->used_lately;
    segment->used_lately = false;
  }
  unused_trims_ = used ? 0 : std::min(unused_trims_ + 1, kTrimsUntilEmpty);
  const std::size_t max_idle = max_idle_locked();
  // The largest first, so that few segments are freed.
  std::sort(unused.begin(), unused.end(),
            [](const Segment* a, const Segment* b) { return a->memory.size() > b->memory.size(); });
  for (Segment* segment : unused) {
    if (idle <= max_idle) break;
    const std::size_t bytes = segment->memory.size();
    if (!drop_locked(*segment)) break;
    idle -= bytes;
  }
  return !segments_.empty();
}

void ArenaOwner::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  set_mapped_locked(0);
  classes_.clear();
  // Unmap what this process does not access any more. The receiver has its own mappings, so messages that
  // it has received stay valid. The last release_locked() of a segment frees the rest.
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto now = segment++;
    if (now->second->held_blocks == 0) segments_.erase(now);
  }
}

std::size_t ArenaOwner::mapped_bytes() const {
  MutexLock lock(mutex_);
  return mapped_bytes_;
}

// Finds a block in order of cost: a free block, one that the receiver has released, a block of a new segment.
absl::optional<ArenaOwner::BlockRef> ArenaOwner::take_locked(std::size_t size, State state) {
  if (closed_ || size > options_.max_bytes) return absl::nullopt;
  const ClassOfSize size_class = class_of(size);
  SizeClass& blocks = classes_[size_class.index];
  for (std::size_t i = 0; i < std::min(kNewest, blocks.sent.size()); ++i) {
    if (reclaim_locked(blocks, blocks.sent.size() - 1 - i)) break;
  }
  if (blocks.free.empty()) reclaim_some_locked(blocks, kOthers);
  if (blocks.free.empty() && !grow_locked(size_class.index, size_class.bytes)) return absl::nullopt;
  const BlockRef block = blocks.free.back();
  blocks.free.pop_back();
  blocks.failures = 0;
  --block.segment->free_blocks;
  ++block.segment->held_blocks;
  block.segment->used_lately = true;
  block.segment->blocks[block.index].state = state;
  return block;
}

bool ArenaOwner::reclaim_locked(SizeClass& blocks, std::size_t at) {
  const BlockRef block = blocks.sent[at];
  // The receiver still uses it.
  if (shared_word<uint32_t>(mark_of(block)).load(std::memory_order_acquire) == 0) return false;
  remove_sent_locked(blocks, at);
  block.segment->blocks[block.index].state = State::kFree;
  ++block.segment->free_blocks;
  blocks.free.push_back(block);
  return true;
}

void ArenaOwner::reclaim_some_locked(SizeClass& blocks, std::size_t count) {
  for (; count > 0 && !blocks.sent.empty(); --count) {
    // After a reclaimed block the cursor stays: another block has taken its place.
    if (blocks.cursor >= blocks.sent.size()) blocks.cursor = 0;
    if (!reclaim_locked(blocks, blocks.cursor)) ++blocks.cursor;
  }
}

void ArenaOwner::reclaim_all_locked() {
  for (auto& [size, blocks] : classes_) reclaim_some_locked(blocks, blocks.sent.size());
}

bool ArenaOwner::has_room_locked(std::size_t bytes) const {
  return bytes <= options_.max_bytes && mapped_bytes_ <= options_.max_bytes - bytes &&
         segments_.size() < kMaxSegments;
}

bool ArenaOwner::grow_locked(int size_class, std::size_t block_bytes) {
  const std::size_t bytes = segment_bytes(block_bytes);
  SizeClass& blocks = classes_[size_class];
  if (bytes > options_.max_bytes) return false;
  if (!has_room_locked(bytes)) {
    // Free segments of other sizes, which the program may have used in an earlier phase. But most often the
    // receiver keeps its blocks, and a search is useless; so do not search each time.
    if (blocks.failures++ % kSearchesPerFullOne != 0) return false;
    reclaim_all_locked();
    if (!blocks.free.empty()) return true;
    std::vector<Segment*> idle;
    for (const auto& [id, segment] : segments_) {
      if (segment->free_blocks == segment->blocks.size()) idle.push_back(segment.get());
    }
    while (!has_room_locked(bytes)) {
      if (idle.empty() || !drop_locked(*idle.back())) return false;
      idle.pop_back();
    }
  }

  // Announce the segment before its blocks can be used, because the receiver must know it before a message
  // refers to it.
  auto segment = std::make_unique<Segment>();
  Descriptor descriptor;
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::create(bytes, wants_huge_pages(block_bytes), descriptor);
  if (!memory.ok()) return false;
  SegmentPacket packet;
  packet.segment = segment->id = next_segment_++;
  packet.bytes = bytes;
  packet.block_bytes = segment->block_bytes = block_bytes;
  packet.blocks = segment->free_blocks = blocks_in_segment(block_bytes);
  // If the socket has no room, the buffer goes through the ring instead.
  if (!options_.announce(packet, descriptor)) return false;
  segment->size_class = size_class;
  segment->memory = *std::move(memory);
  segment->blocks.resize(packet.blocks);
  for (uint32_t i = 0; i < packet.blocks; ++i) {
    blocks.free.push_back({segment.get(), static_cast<uint32_t>(packet.blocks) - 1 - i});
  }
  set_mapped_locked(mapped_bytes_ + bytes);
  segments_.emplace(segment->id, std::move(segment));
  return true;
}

bool ArenaOwner::drop_locked(Segment& segment) {
  DropPacket packet;
  packet.segment = segment.id;
  // All blocks of the segment are free, so no message that the receiver still has to read refers to it.
  if (!options_.retract(packet)) return false;
  std::vector<BlockRef>& free = classes_[segment.size_class].free;
  free.erase(std::remove_if(free.begin(), free.end(),
                            [&segment](const BlockRef& block) { return block.segment == &segment; }),
             free.end());
  set_mapped_locked(mapped_bytes_ - segment.memory.size());
  segments_.erase(packet.segment);
  return true;
}

ArenaOwner::Segment* ArenaOwner::find_locked(uint64_t name) {
  auto found = segments_.find(BlockName::decode(name).segment);
  return found == segments_.end() ? nullptr : found->second.get();
}

void ArenaOwner::release_locked(Segment& segment, uint32_t index, State state) {
  --segment.held_blocks;
  segment.used_lately = true;
  if (closed_) {
    // The connection is closed: free the segment when no block of it is held.
    const uint32_t id = segment.id;
    if (segment.held_blocks == 0) segments_.erase(id);
    return;
  }
  SizeClass& blocks = classes_[segment.size_class];
  segment.blocks[index].state = state;
  const BlockRef block{&segment, index};
  if (state == State::kSent) {
    // Relaxed: the receiver learns of the block only from a record that is published later, with release.
    shared_word<uint32_t>(mark_of(block)).store(0, std::memory_order_relaxed);
    segment.blocks[index].sent_at = static_cast<uint32_t>(blocks.sent.size());
    blocks.sent.push_back(block);
  } else {
    ++segment.free_blocks;
    blocks.free.push_back(block);
  }
}

}  // namespace gradwire::transport
