#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

struct BufferPoolOptions {
  // How much released memory is kept for the next buffers. Kept pages are mapped and warm: a copy into fresh
  // pages is many times slower than one into these.
  std::size_t max_idle_bytes = std::size_t{256} << 20;
  // What nobody has used for about this long trim() gives back.
  absl::Duration idle_time = absl::Seconds(5);
};

// Memory for received buffers, aligned to 64 bytes, with undefined contents.
//
// Sizes are rounded up to classes at most a quarter apart. Large blocks are mappings of their own, so what a
// buffer rounds up to, or a sender announces and never sends, takes address space and no memory; small
// buffers come from malloc and are not kept. Thread-safe. The pool may be destroyed before its buffers: each
// lives until its last owner lets go, and is then given back to the system. Releasing a buffer takes none of
// the pool's locks and may happen on any thread. Several transports may share one.
class BufferPool {
 public:
  // Buffers below this size do not come from the pool's memory.
  static constexpr std::size_t kPooledFrom = 1024;

  explicit BufferPool(BufferPoolOptions options = BufferPoolOptions());
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of `size` bytes that the caller alone owns; no memory (nullptr) for size 0. ResourceExhausted
  // when the system has none left.
  absl::StatusOr<Buffer> allocate(std::size_t size);

  // Bytes that are released and kept.
  std::size_t idle_bytes() const;

  // Gives back to the system what has been idle for `options().idle_time` to twice that; the owners of the
  // pool call this about that often (more often does no harm) for as long as idle_bytes() is not 0. `now`
  // does not go back.
  void trim(absl::Time now);

  const BufferPoolOptions& options() const;

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace gradwire::transport
