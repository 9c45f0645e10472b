#pragma once

#include <cstddef>
#include <cstring>

namespace gradwire::collectives::cpu {

// Bytes that an operation reads or writes. The memory belongs to the caller, and must stay valid until the
// operation has returned.
struct Span {
  void* data = nullptr;
  std::size_t size = 0;

  Span part(std::size_t offset, std::size_t bytes) const {
    return {static_cast<char*>(data) + offset, bytes};
  }
};

// Like memcpy, but allows null pointers if `bytes` is 0.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// The operation that combines elements. It is associative as far as the arithmetic is. Thread-safe; does not
// throw.
class Reducer {
 public:
  explicit Reducer(std::size_t element_size) : element_size_(element_size) {}
  virtual ~Reducer() = default;

  std::size_t element_size() const { return element_size_; }
  // out = a (+) b, for `bytes` bytes, a multiple of the element size. `out` is equal to one of the operands
  // or overlaps neither. All pointers are aligned for the element. The same operands in the same order give
  // the same bits.
  virtual void combine(void* out, const void* a, const void* b, std::size_t bytes) const = 0;
  // into = into (+) from.
  void reduce(void* into, const void* from, std::size_t bytes) const { combine(into, into, from, bytes); }

 private:
  const std::size_t element_size_;
};

}  // namespace gradwire::collectives::cpu
