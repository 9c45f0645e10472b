#include "gradwire/tests/device/core/host_memory.h"

#include <new>
#include <utility>

#include "gradwire/tests/device/core/poison.h"

namespace gradwire::lag {
namespace {

constexpr size_t kSmallestHostBlock = 256;
constexpr std::align_val_t kAlignment{64};

}  // namespace

HostMemory::~HostMemory() {
  MutexLock lock(mutex_);
  for (const auto& [data, block] : blocks_) ::operator delete(block->data, kAlignment);
}

void* HostMemory::allocate(size_t bytes) {
  size_t capacity = kSmallestHostBlock;
  while (capacity < bytes) capacity *= 2;
  MutexLock lock(mutex_);
  collect_locked();
  totals_.allocations++;
  Block* block = nullptr;
  if (std::vector<Block*>& free = cached_[capacity]; !free.empty()) {
    block = free.back();
    free.pop_back();
    totals_.reuses++;
  } else {
    auto created = std::make_unique<Block>();
    created->data = static_cast<std::byte*>(::operator new(capacity, kAlignment));
    created->capacity = capacity;
    poison(created->data, capacity);
    block = created.get();
    blocks_.emplace(block->data, std::move(created));
  }
  block->size = bytes;
  used_.emplace(block->data, block);
  return block->data;
}

void HostMemory::free(void* data) {
  MutexLock lock(mutex_);
  const auto found = used_.find(static_cast<std::byte*>(data));
  if (found == used_.end()) return;
  Block* block = found->second;
  used_.erase(found);
  for (Stream* stream : block->used_by) block->pending.push_back(stream->end());
  block->used_by.clear();
  if (all_passed(block->pending)) {
    cache_locked(block);
  } else {
    pending_.push_back(block);
  }
}

bool HostMemory::record(const void* address, Stream& stream) {
  MutexLock lock(mutex_);
  Block* block = find_locked(address);
  if (block == nullptr) return false;
  block->used_by.insert(&stream);
  return true;
}

bool HostMemory::contains(const void* address) const {
  MutexLock lock(mutex_);
  return find_locked(address) != nullptr;
}

void HostMemory::release_cached() {
  MutexLock lock(mutex_);
  collect_locked();
  for (const auto& [capacity, list] : cached_) {
    for (Block* block : list) {
      std::byte* data = block->data;
      blocks_.erase(data);
      ::operator delete(data, kAlignment);
    }
  }
  cached_.clear();
}

HostMemory::Counts HostMemory::counts() {
  MutexLock lock(mutex_);
  collect_locked();
  Counts counts = totals_;
  for (const auto& [data, block] : used_) {
    counts.blocks++;
    counts.bytes += static_cast<int64_t>(block->size);
  }
  counts.pending = static_cast<int64_t>(pending_.size());
  return counts;
}

HostMemory::Block* HostMemory::find_locked(const void* address) const {
  const auto* data = static_cast<const std::byte*>(address);
  auto after = used_.upper_bound(data);
  if (after == used_.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  return data < block->data + block->capacity ? block : nullptr;
}

void HostMemory::collect_locked() {
  std::vector<Block*> waiting;
  for (Block* block : pending_) {
    if (all_passed(block->pending)) {
      cache_locked(block);
    } else {
      waiting.push_back(block);
    }
  }
  pending_ = std::move(waiting);
}

void HostMemory::cache_locked(Block* block) {
  block->pending.clear();
  poison(block->data, block->capacity);
  cached_[block->capacity].push_back(block);
}

}  // namespace gradwire::lag
