#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

struct BufferPoolOptions {
  // Maximum size of released memory that is kept for later buffers. Kept pages are mapped and warm: a copy
  // into new pages is many times slower than a copy into kept ones.
  std::size_t max_idle_bytes = std::size_t{256} << 20;
  // trim() returns memory to the system that has been unused for about this long.
  absl::Duration idle_time = absl::Seconds(5);
};

// Allocates memory for received buffers, aligned to 64 bytes, with undefined contents.
//
// Sizes are rounded up to size classes at most a quarter apart. Large blocks are separate mappings: bytes
// that are never written, because of rounding or because the sender announced data and never sent it, use
// address space but no memory. Small buffers come from malloc and are not kept.
//
// Thread-safe. The pool may be destroyed before its buffers: each buffer lives until its last owner drops it;
// then its memory is returned to the system. Releasing a buffer takes no lock of the pool and may happen on
// any thread. Several transports may share one pool.
class BufferPool {
 public:
  // Buffers below this size are not pooled.
  static constexpr std::size_t kPooledFrom = 1024;

  explicit BufferPool(BufferPoolOptions options = BufferPoolOptions());
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Returns a buffer of `size` bytes that is owned only by the caller; without memory (nullptr) for size 0.
  // ResourceExhausted if the system has no memory left.
  absl::StatusOr<Buffer> allocate(std::size_t size);

  // Number of bytes that were released and are kept.
  std::size_t idle_bytes() const;

  // Returns memory to the system that has been idle for between one and two times `options().idle_time`. The
  // owners of the pool must call this about once per idle_time (more often is harmless) while idle_bytes() is
  // not 0. `now` must not decrease.
  void trim(absl::Time now);

  const BufferPoolOptions& options() const;

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace gradwire::transport
