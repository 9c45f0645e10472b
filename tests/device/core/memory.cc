#include "gradwire/tests/device/core/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/tests/device/core/poison.h"

namespace gradwire::lag {
namespace {

constexpr size_t kSmallest = 512;
constexpr size_t kMega = 1 << 20;
// How often an allocation waits for freed memory of other streams.
constexpr int kMaxAttempts = 8;

void launch_poison(Stream& stream, void* data, size_t size) {
  stream.launch_at_once([data, size] { poison(data, size); });
}

}  // namespace

Memory::Memory(Shared& shared, int device, size_t size, size_t capacity)
    : shared_(shared),
      device_(device),
      size_(size),
      file_(::memfd_create("lag", MFD_CLOEXEC)),
      capacity_(std::min(size, capacity)),
      extents_(size) {
  if (!file_.valid() || ::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) {
    throw Error(absl::UnavailableError(absl::StrCat("cannot create a memfd: ", std::strerror(errno))));
  }
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (base == MAP_FAILED) {
    throw Error(absl::UnavailableError(
        absl::StrCat("cannot map ", size, " bytes of a memfd: ", std::strerror(errno))));
  }
  base_ = static_cast<std::byte*>(base);
}

Memory::~Memory() { ::munmap(base_, size_); }

size_t Memory::rounded(size_t bytes) {
  // Few different capacities, so that blocks are used again often.
  if (bytes > kMega) return (bytes + kMega - 1) / kMega * kMega;
  size_t capacity = kSmallest;
  while (capacity < bytes) capacity *= 2;
  return capacity;
}

absl::StatusOr<Block*> Memory::allocate(size_t bytes, Stream& stream) {
  if (absl::Status status = shared_.status(device_); !status.ok()) return status;
  const size_t capacity = rounded(bytes);
  for (int attempt = 0;; attempt++) {
    std::vector<Point> obstacles;
    {
      MutexLock lock(mutex_);
      collect_locked();
      Block* block = reuse_locked(capacity, stream);
      if (block != nullptr) {
        totals_.reuses++;
      } else {
        block = carve_locked(capacity, stream);
        if (block == nullptr) {
          release_cached_locked();
          block = carve_locked(capacity, stream);
        }
      }
      if (block != nullptr) {
        block->requested_ = bytes;
        used_.emplace(block->offset_, block);
        totals_.allocations++;
        launch_poison(stream, block->data_, block->capacity_);
        return block;
      }
      // Freed memory is first poisoned, so one wait may lead to the next.
      obstacles = obstacles_locked();
      if (obstacles.empty() || attempt == kMaxAttempts) {
        totals_.out_of_memory++;
        return absl::ResourceExhaustedError(
            absl::StrCat("device lag:", device_, " is out of memory: got a request for ", bytes,
                         " bytes, expected at most ", capacity_ - reserved_, " of ", capacity_,
                         "; free tensors, or set a larger capacity"));
      }
    }
    // As CUDA's allocator, which synchronises with the device before it gives up.
    if (absl::Status status = shared_.wait(device_, obstacles, "allocate"); !status.ok()) return status;
  }
}

void Memory::free(Block* block) {
  MutexLock lock(mutex_);
  used_.erase(block->offset_);
  for (Stream* stream : block->used_by_) block->pending_.push_back(stream->end());
  block->used_by_.clear();
  if (all_passed(block->pending_)) {
    cache_locked(block);
  } else {
    pending_.push_back(block);
  }
}

void Memory::record_stream(Block* block, Stream& stream) {
  MutexLock lock(mutex_);
  if (&stream != block->stream_) block->used_by_.insert(&stream);
}

Block* Memory::find(const void* address) const {
  if (!contains(address)) return nullptr;
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(address) - base_);
  MutexLock lock(mutex_);
  auto after = used_.upper_bound(offset);
  if (after == used_.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  return offset < block->offset_ + block->capacity_ ? block : nullptr;
}

void Memory::set_capacity(size_t bytes) {
  MutexLock lock(mutex_);
  capacity_ = std::min(size_, bytes);
  // Otherwise the next allocation may succeed, because it gets a cached block.
  collect_locked();
  if (reserved_ > capacity_) release_cached_locked();
}

void Memory::release_cached() {
  MutexLock lock(mutex_);
  collect_locked();
  release_cached_locked();
}

Memory::Counts Memory::counts() {
  MutexLock lock(mutex_);
  collect_locked();
  Counts counts = totals_;
  for (const auto& [offset, block] : used_) {
    counts.blocks++;
    counts.bytes += static_cast<int64_t>(block->requested_);
  }
  counts.pending = static_cast<int64_t>(pending_.size());
  counts.reserved = static_cast<int64_t>(reserved_);
  counts.capacity = static_cast<int64_t>(capacity_);
  return counts;
}

void Memory::collect_locked() {
  std::vector<Block*> waiting;
  for (Block* block : pending_) {
    if (all_passed(block->pending_)) {
      cache_locked(block);
    } else {
      waiting.push_back(block);
    }
  }
  pending_ = std::move(waiting);
}

void Memory::cache_locked(Block* block) {
  launch_poison(*block->stream_, block->data_, block->capacity_);
  // Another stream may have the memory only after the poison.
  block->pending_ = {block->stream_->end()};
  cached_[{block->stream_, block->capacity_}].push_back(block);
}

Block* Memory::reuse_locked(size_t capacity, Stream& stream) {
  const auto found = cached_.find({&stream, capacity});
  if (found == cached_.end() || found->second.empty()) return nullptr;
  // The block that was freed last: a program that still uses it notices this soonest.
  Block* block = found->second.back();
  found->second.pop_back();
  block->pending_.clear();
  return block;
}

Block* Memory::carve_locked(size_t capacity, Stream& stream) {
  if (reserved_ + capacity > capacity_) return nullptr;
  const std::optional<size_t> offset = extents_.take(capacity);
  if (!offset) return nullptr;
  reserved_ += capacity;
  auto block = std::make_unique<Block>();
  block->memory_ = this;
  block->stream_ = &stream;
  block->data_ = base_ + *offset;
  block->offset_ = *offset;
  block->capacity_ = capacity;
  return (blocks_[*offset] = std::move(block)).get();
}

void Memory::release_cached_locked() {
  for (auto& [key, list] : cached_) {
    std::vector<Block*> kept;
    for (Block* block : list) {
      if (!all_passed(block->pending_)) {
        kept.push_back(block);
        continue;
      }
      reserved_ -= block->capacity_;
      extents_.give(block->offset_, block->capacity_);
      blocks_.erase(block->offset_);
    }
    list = std::move(kept);
  }
}

std::vector<Point> Memory::obstacles_locked() const {
  std::vector<Point> points;
  const auto add = [&points](const Block* block) {
    for (const Point& point : block->pending_) {
      if (!point.passed()) points.push_back(point);
    }
  };
  for (const Block* block : pending_) add(block);
  for (const auto& [key, list] : cached_) {
    for (const Block* block : list) add(block);
  }
  return points;
}

}  // namespace gradwire::lag
