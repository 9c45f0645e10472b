#include "gradwire/transport/buffer_pool.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kAlignment = 64;
// Smaller blocks come from malloc. Larger ones are mappings, which use memory only for the pages that are
// written.
constexpr std::size_t kMappedFrom = std::size_t{256} << 10;
// A mapping of at least two huge pages is aligned to them. 2 MiB is the size on x86-64, and on arm64 with
// pages of 4 KiB. kLargest is the address space of a process on x86-64.
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugePagesFrom = 2 * kHugePage;
constexpr std::size_t kLargest = std::size_t{1} << 47;
constexpr int kSizeClasses = 164;

struct SizeClass {
  int index;
  std::size_t capacity;
};

// The classes are 64, 128, 192, 256, then four for each doubling.
SizeClass size_class_of(std::size_t size) {
  if (size <= 256) {
    int index = static_cast<int>((size - 1) / 64);
    return {index, std::size_t(index + 1) * 64};
  }
  int power = absl::bit_width(size - 1) - 1;
  std::size_t base = std::size_t{1} << power;
  std::size_t step = base / 4;
  std::size_t quarter = (size - 1 - base) / step;
  return {4 + (power - 8) * 4 + static_cast<int>(quarter), base + (quarter + 1) * step};
}

// A small buffer and the control block of its owner in one allocation, so that it costs one call of malloc.
template <std::size_t kSize>
Buffer small_buffer(std::size_t size) {
  static_assert(kSize % kAlignment == 0);
  using Bytes = std::array<char, kSize + kAlignment - 1>;
  std::shared_ptr<Bytes> bytes = std::make_shared_for_overwrite<Bytes>();
  const auto start = reinterpret_cast<uintptr_t>(bytes->data());
  char* const aligned = bytes->data() + (kAlignment - start % kAlignment) % kAlignment;
  return Buffer(aligned, size, std::shared_ptr<void>(std::move(bytes), aligned));
}

Buffer small_buffer(std::size_t size) {
  if (size <= 64) return small_buffer<64>(size);
  if (size <= 192) return small_buffer<192>(size);
  if (size <= 448) return small_buffer<448>(size);
  return small_buffer<BufferPool::kPooledFrom>(size);
}

// With huge pages one fault maps 2 MiB instead of 4 KiB, if the mapping is aligned to them.
void* map_pages(std::size_t bytes) {
  std::size_t slack = bytes >= kHugePagesFrom ? kHugePage : 0;
  void* mapped = ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return mapped;
  char* start = static_cast<char*>(mapped);
  std::size_t before = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(start, before);
  if (slack > before) ::munmap(start + before + bytes, slack - before);
  ::madvise(start + before, bytes, MADV_HUGEPAGE);
  return start + before;
}

}  // namespace

// The state that the pool shares with all allocated buffers, so that their memory can outlive the pool.
class BufferPool::Core : public std::enable_shared_from_this<BufferPool::Core> {
 public:
  explicit Core(const BufferPoolOptions& options) : options_(options) {}

  ~Core() {
    for (int i = 0; i < kSizeClasses; ++i) {
      free_list(kept_[i]);
      free_list(released_[i].load(std::memory_order_acquire));
    }
  }

  absl::StatusOr<Buffer> allocate(std::size_t size) {
    if (size == 0) return Buffer();
    if (size > kLargest) return exhausted(size);
    if (size < kPooledFrom) {
      try {
        return small_buffer(size);
      } catch (const std::bad_alloc&) {
        return exhausted(size);
      }
    }
    SizeClass size_class = size_class_of(size);
    Block* block = take_or_make_room(size_class);
    if (block == nullptr) block = new_block(size_class);
    if (block == nullptr) return exhausted(size);
    // Set only while the block is in use: a kept block with a reference would keep the pool alive.
    block->core = shared_from_this();
    char* payload = reinterpret_cast<char*>(block) + kAlignment;
    try {
      // If the allocation of the control block throws, shared_ptr runs the deleter first.
      return Buffer(payload, size, std::shared_ptr<void>(payload, [block](void*) { release(block); }));
    } catch (const std::bad_alloc&) {
      return exhausted(size);
    }
  }

  // From now on released memory is not kept.
  void close() { closed_.store(true, std::memory_order_release); }

  std::size_t idle_bytes() const { return idle_bytes_.load(std::memory_order_relaxed); }

  const BufferPoolOptions& options() const { return options_; }

  void trim(absl::Time now) {
    Block* idle = nullptr;
    {
      MutexLock lock(mutex_);
      if (now < next_trim_) return;
      next_trim_ = now + options_.idle_time;
      // Blocks that were released before the previous call have been idle since then.
      // Trimming works in periods, without a clock reading per release:
      // 1. Each release notes the current period.
      // 2. Each call of trim() starts a new period and frees the blocks of all periods before the one that
      //    ends now. They have been idle for at least one idle_time.
      const uint32_t current = period_.fetch_add(1, std::memory_order_relaxed);
      for (int i = 0; i < kSizeClasses; ++i) idle = take_idle_locked(i, current, idle);
    }
    free_list(idle);
  }

 private:
  // The header of a block, in the 64 bytes before the payload.
  struct Block {
    Block* next = nullptr;
    std::size_t capacity = 0;
    std::size_t mapped_bytes = 0;  // 0: from malloc
    int size_class = 0;
    uint32_t released_in = 0;    // the period of the release, while the block is kept
    std::shared_ptr<Core> core;  // set while the buffer is in use
  };
  static_assert(sizeof(Block) <= kAlignment);

  static absl::Status exhausted(std::size_t size) {
    return system_status(absl::StrCat("no memory for a buffer of ", size, " bytes"), ENOMEM,
                         Resource::kMapping);
  }

  static Block* new_block(SizeClass size_class) {
    std::size_t bytes = size_class.capacity + kAlignment;
    bool mapped = bytes >= kMappedFrom;
    if (mapped) bytes = (bytes + 4095) / 4096 * 4096;
    void* memory = mapped ? map_pages(bytes) : std::aligned_alloc(kAlignment, bytes);
    if (memory == nullptr) return nullptr;
    Block* block = new (memory) Block();
    block->capacity = size_class.capacity;
    block->mapped_bytes = mapped ? bytes : 0;
    block->size_class = size_class.index;
    return block;
  }

  static void free_list(Block* block) {
    while (block != nullptr) {
      Block* next = block->next;
      std::size_t mapped_bytes = block->mapped_bytes;
      block->~Block();
      if (mapped_bytes > 0) {
        ::munmap(block, mapped_bytes);
      } else {
        std::free(block);
      }
      block = next;
    }
  }

  static void release(Block* block) {
    // This may be the last reference: then the core is destroyed when this function returns.
    std::shared_ptr<Core> core = std::move(block->core);
    core->keep_or_free(block);
  }

  // The bytes are counted before the block is kept, and given back if that is too much. So concurrent
  // releases together never keep more than the limit. If close() runs at the same time, the block may still
  // be pushed; the destructor of the core frees it.
  void keep_or_free(Block* block) {
    std::size_t idle = idle_bytes_.fetch_add(block->capacity, std::memory_order_relaxed) + block->capacity;
    if (idle > options_.max_idle_bytes || closed_.load(std::memory_order_acquire)) {
      idle_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
      block->next = nullptr;
      free_list(block);
      return;
    }
    // A lock-free stack. Blocks are pushed one at a time, and the whole stack is always taken at once. So the
    // ABA problem cannot occur: no block can be popped and pushed again between the load and the exchange.
    block->released_in = period_.load(std::memory_order_relaxed);
    std::atomic<Block*>& head = released_[block->size_class];
    block->next = head.load(std::memory_order_relaxed);
    // Release: pairs with the acquire in pop_locked() and take_idle_locked(), which read `next` and the
    // header.
    while (!head.compare_exchange_weak(block->next, block, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    }
  }

  // Returns a kept block of this class. If that fails, frees kept blocks of other classes until one more
  // block of this class could be kept. Otherwise memory from an earlier phase of the program would prevent
  // that its current blocks are kept.
  Block* take_or_make_room(SizeClass size_class) {
    Block* evicted = nullptr;
    {
      MutexLock lock(mutex_);
      if (Block* block = pop_locked(size_class.index)) return block;
      for (int i = kSizeClasses - 1; i >= 0 && crowded(size_class.capacity); --i) {
        while (crowded(size_class.capacity)) {
          Block* block = pop_locked(i);
          if (block == nullptr) break;
          block->next = evicted;
          evicted = block;
        }
      }
    }
    free_list(evicted);
    return nullptr;
  }

  bool crowded(std::size_t capacity) const {
    std::size_t idle = idle_bytes();
    return idle > 0 && capacity <= options_.max_idle_bytes && idle + capacity > options_.max_idle_bytes;
  }

  // Moves the blocks of a class that were released before the period `current` to the front of `idle`.
  Block* take_idle_locked(int index, uint32_t current, Block* idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Block* recent = nullptr;
    Block** last = &recent;
    for (Block* list : {released_[index].exchange(nullptr, std::memory_order_acquire), kept_[index]}) {
      while (list != nullptr) {
        Block* const block = std::exchange(list, list->next);
        block->next = nullptr;
        if (block->released_in == current) {
          *last = block;
          last = &block->next;
        } else {
          idle_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
          block->next = idle;
          idle = block;
        }
      }
    }
    kept_[index] = recent;
    return idle;
  }

  // Two lists per class: kept_ belongs to the lock, released_ is the stack that releases push to without
  // it. When kept_ is empty, the whole stack moves there.
  Block* pop_locked(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (kept_[index] == nullptr) kept_[index] = released_[index].exchange(nullptr, std::memory_order_acquire);
    Block* block = kept_[index];
    if (block == nullptr) return nullptr;
    kept_[index] = block->next;
    block->next = nullptr;
    idle_bytes_.fetch_sub(block->capacity, std::memory_order_relaxed);
    return block;
  }

  const BufferPoolOptions options_;

  ProcessMutex mutex_;
  std::array<Block*, kSizeClasses> kept_ ABSL_GUARDED_BY(mutex_) = {};
  absl::Time next_trim_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  std::array<std::atomic<Block*>, kSizeClasses> released_ = {};
  std::atomic<std::size_t> idle_bytes_{0};
  // Number of calls of trim().
  std::atomic<uint32_t> period_{0};
  std::atomic<bool> closed_{false};
};

BufferPool::BufferPool(BufferPoolOptions options) : core_(std::make_shared<Core>(options)) {}

BufferPool::~BufferPool() { core_->close(); }

absl::StatusOr<Buffer> BufferPool::allocate(std::size_t size) { return core_->allocate(size); }

std::size_t BufferPool::idle_bytes() const { return core_->idle_bytes(); }

void BufferPool::trim(absl::Time now) { core_->trim(now); }

const BufferPoolOptions& BufferPool::options() const { return core_->options(); }

}  // namespace gradwire::transport
