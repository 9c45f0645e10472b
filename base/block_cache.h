#pragma once

#include <cstddef>
#include <new>

namespace gradwire {

// A per-thread cache of freed blocks of kBytes each. It serves objects of some KiB that are allocated and
// freed with every message; malloc would take them from lists that all threads share.
template <std::size_t kBytes, std::size_t kAlignment = alignof(std::max_align_t)>
class BlockCache {
 public:
  static void* take() {
    Kept& kept = kept_;
    if (kept.count > 0 && !closed_) return kept.blocks[--kept.count];
    return ::operator new(kBytes, std::align_val_t(kAlignment));
  }
  static void give(void* block) {
    Kept& kept = kept_;
    if (kept.count < kMaxKept && !closed_) {
      kept.blocks[kept.count++] = block;
    } else {
      ::operator delete(block, std::align_val_t(kAlignment));
    }
  }

 private:
  static constexpr int kMaxKept = 32;
  struct Kept {
    ~Kept() {
      while (count > 0) ::operator delete(blocks[--count], std::align_val_t(kAlignment));
      closed_ = true;
    }
    int count = 0;
    void* blocks[kMaxKept];
  };
  // True once kept_ is destroyed: blocks that the thread frees later are not kept. This is not a member of
  // Kept, because the compiler may drop a store into an object that is being destroyed.
  static inline thread_local bool closed_ = false;
  static inline thread_local Kept kept_;
};

// An allocator for std::allocate_shared that takes single objects from the BlockCache.
template <class T>
struct BlockAllocator {
  using value_type = T;
  BlockAllocator() = default;
  template <class U>
  BlockAllocator(const BlockAllocator<U>&) {}
  T* allocate(std::size_t count) {
    static_assert(alignof(T) <= alignof(std::max_align_t));
    return static_cast<T*>(count == 1 ? BlockCache<sizeof(T)>::take() : ::operator new(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) {
    if (count == 1) {
      BlockCache<sizeof(T)>::give(memory);
    } else {
      ::operator delete(memory);
    }
  }
  template <class U>
  bool operator==(const BlockAllocator<U>&) const {
    return true;
  }
};

}  // namespace gradwire
