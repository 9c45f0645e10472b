#include "gradwire/base/testing/failing_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace gradwire {
namespace {

thread_local bool active = false;
// Allocations that still succeed, and those that fail after them.
thread_local int to_succeed = 0;
thread_local int to_fail = 0;
thread_local int failures = 0;

// The same for all threads. Below 0 an allocation has failed, or none will.
std::atomic<int> to_succeed_in_process{-1};

bool fails() noexcept {
  if (to_succeed_in_process.load(std::memory_order_relaxed) >= 0 && to_succeed_in_process.fetch_sub(1) == 0)
    return true;
  if (!active) return false;
  if (to_succeed > 0) {
    --to_succeed;
    return false;
  }
  if (to_fail == 0) return false;
  if (to_fail != FailingMemory::kAll) --to_fail;
  ++failures;
  return true;
}

void* allocate(std::size_t size) noexcept { return fails() ? nullptr : std::malloc(size == 0 ? 1 : size); }

void* allocate(std::size_t size, std::align_val_t alignment) noexcept {
  const auto aligned = static_cast<std::size_t>(alignment);
  return fails() ? nullptr : std::aligned_alloc(aligned, (size + aligned - 1) / aligned * aligned);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

FailingMemory::FailingMemory(int succeed, int fail) {
  to_succeed = succeed;
  to_fail = fail;
  failures = 0;
  active = true;
}
FailingMemory::~FailingMemory() { active = false; }
int FailingMemory::failed() const { return failures; }

FailingMemoryOfProcess::FailingMemoryOfProcess(int succeed) { to_succeed_in_process = succeed; }
FailingMemoryOfProcess::~FailingMemoryOfProcess() { to_succeed_in_process = -1; }
bool FailingMemoryOfProcess::failed() const { return to_succeed_in_process < 0; }

}  // namespace gradwire

// All forms: a sanitizer has its own for those that are missing here, and compares how memory is made with
// how it is returned.
void* operator new(std::size_t size) { return gradwire::or_throw(gradwire::allocate(size)); }
void* operator new[](std::size_t size) { return gradwire::or_throw(gradwire::allocate(size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return gradwire::or_throw(gradwire::allocate(size, alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return gradwire::or_throw(gradwire::allocate(size, alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return gradwire::allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return gradwire::allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
