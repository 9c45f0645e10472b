#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// Counts for tests and benchmarks.
struct ShmCounters {
  // Large buffers that were copied into the arena, that lay there already, and that had to go through the
  // ring, since the arena had no room; in bytes.
  std::atomic<uint64_t> arena_bytes{0};
  std::atomic<uint64_t> moved_bytes{0};
  std::atomic<uint64_t> ring_bytes{0};
  std::atomic<uint64_t> doorbells{0};
};

struct ShmOptions {
  // What arrives is checked against them before memory is allocated; send() refuses what is over them.
  Limits limits;
  // Where received buffers come from that do not lie in the arena; nullptr: a pool of its own.
  std::shared_ptr<BufferPool> pool;
  // One direction of a connection: a power of two from 4 KiB to 16 MiB. Shorter messages go through it, and
  // longer ones when the arena is exhausted.
  std::size_t ring_bytes = std::size_t{128} << 10;
  // Buffers up to this size go through the ring, larger ones through the arena.
  std::size_t max_ring_buffer_bytes = std::size_t{4} << 10;
  // One direction of a connection. Memory is made as it is needed.
  std::size_t max_arena_bytes = std::size_t{1} << 30;
  // What nobody has used for so long is given back, but for a rest that stays warm.
  absl::Duration arena_idle_time = absl::Seconds(5);
  std::size_t max_idle_arena_bytes = std::size_t{4} << 20;
  // For a process that has connected to introduce itself; shorter in tests.
  absl::Duration introduction_timeout = kIntroductionTimeout;
  // How the transport's own thread waits, if it has one.
  WaitPolicy wait;
  // May be null.
  std::shared_ptr<ShmCounters> counters;
};

// Connections between processes of one user on one host, through memory that they share. Addresses are
// "shm:<boot id>:<name>", where the name is that of an abstract Unix socket: it is reached from the same
// network
// namespace. connect() to what cannot be reached ends at once, with Unavailable in on_closed.
//
// A large buffer is copied once, on the sender's thread, into memory that the receiver then uses; after
// send() nothing borrowed is read any more, unless the arena was exhausted or the connection was not
// established yet (capture() costs next to nothing then, too). What Connection::allocate() gives is not
// copied at all.
//
// Whoever drives `loop` reads and delivers; without a loop the transport has one of its own, and a thread
// that drives it, from listen() or connect() on. Uses one descriptor per connection, and one to listen.
std::unique_ptr<Transport> make_shm_transport(ShmOptions options = ShmOptions(),
                                              std::shared_ptr<EventLoop> loop = nullptr);

// Whether this kind works here: Unavailable with what the system lacks or forbids.
absl::Status probe_shm();

// Whether `address` is one of this kind, and of this host since it was started.
bool is_local_shm_address(absl::string_view address);

}  // namespace gradwire::transport
