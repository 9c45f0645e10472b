#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/message.h"

namespace gradwire::transport {

struct BufferPoolOptions {
  // How much released memory is kept for the next buffers. Kept pages are mapped and warm: a copy into fresh
  // pages is many times slower than one into these.
  std::size_t max_idle_bytes = std::size_t{256} << 20;
};

// Memory for received buffers, aligned to 64 bytes, with undefined contents.
//
// Sizes are rounded up to classes at most a quarter apart. Large blocks are mappings of their own, so what a
// buffer rounds up to, or a sender announces and never sends, takes address space and no memory. Thread-safe.
// The pool may be destroyed before its buffers: each lives until its last owner lets go, and is then given
// back to the system. Releasing a buffer takes none of the pool's locks and may happen on any thread.
class BufferPool {
 public:
  explicit BufferPool(BufferPoolOptions options = BufferPoolOptions());
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of `size` bytes that the caller alone owns; no memory (nullptr) for size 0. ResourceExhausted
  // when the system has none left.
  absl::StatusOr<Buffer> allocate(std::size_t size);

  // Bytes that are released and kept.
  std::size_t idle_bytes() const;

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace gradwire::transport
