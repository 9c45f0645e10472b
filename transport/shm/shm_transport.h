#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// Counters for tests and benchmarks.
struct ShmCounters {
  // Bytes of large buffers that were copied into the arena, that were allocated there, and that went through
  // the ring because the arena had no room.
  std::atomic<uint64_t> arena_bytes{0};
  std::atomic<uint64_t> moved_bytes{0};
  std::atomic<uint64_t> ring_bytes{0};
  std::atomic<uint64_t> doorbells{0};
  // The size of all arenas that this side has mapped now, to send from.
  std::atomic<int64_t> mapped_bytes{0};
  // Number of these arenas.
  std::atomic<int64_t> arenas{0};
};

struct ShmOptions {
  // Received data is checked against these limits before memory is allocated; send() fails for messages over
  // them.
  Limits limits;
  // The pool for received buffers that are not in the arena; nullptr: the transport creates one.
  std::shared_ptr<BufferPool> pool;
  // The size of the ring of one direction: a power of two from 4 KiB to 16 MiB. Short messages go through the
  // ring, and long ones if the arena is exhausted.
  std::size_t ring_bytes = std::size_t{128} << 10;
  // Buffers up to this size go through the ring, larger ones through the arena.
  std::size_t max_ring_buffer_bytes = std::size_t{4} << 10;
  // The maximum size of the arena of one direction. Memory is created as needed.
  std::size_t max_arena_bytes = std::size_t{4} << 30;
  // Arena memory that has been unused for this time is returned to the system. The arena of one direction
  // keeps at most max_idle_arena_bytes, those of all connections with the same `counters` together
  // max_idle_arenas_bytes, and one that is not used for 12 times as long keeps nothing.
  absl::Duration arena_idle_time = absl::Seconds(5);
  std::size_t max_idle_arena_bytes = std::size_t{4} << 20;
  std::size_t max_idle_arenas_bytes = std::size_t{64} << 20;
  // The time in which a process that connects must introduce itself; shorter in tests.
  absl::Duration introduction_timeout = kIntroductionTimeout;
  // The wait policy of the transport's own thread, if it has one.
  WaitPolicy wait;
  // The users, beside that of this process, whose processes may be peers (SecurityOptions::allowed_users).
  // Both ends check the user of the other.
  std::vector<uid_t> allowed_users;
  // May be null.
  std::shared_ptr<ShmCounters> counters;
};

// Connections between processes of one user on one host, or of users that each end allows, through shared
// memory. Nothing is sent to a process of another user. Addresses have the form "shm:<boot id>:<name>"; the
// name is that of an abstract Unix socket, which can be reached from the same network namespace. connect() to
// an address that cannot be reached fails at once, with Unavailable in on_closed().
//
// A large buffer is copied once, on the sender's thread, into memory that the receiver then uses. After
// send() no borrowed buffer is read any more, unless the arena was exhausted or the connection was not
// established yet; then capture() is cheap as well. Buffers from Connection::allocate() are not copied.
//
// The driver of `loop` reads and delivers. Without `loop` the transport creates a loop and a thread that
// drives it, at the first listen() or connect(). Uses one descriptor per connection, one to
// listen, and a spare one for moments without a free one.
std::unique_ptr<Transport> make_shm_transport(ShmOptions options = ShmOptions(),
                                              std::shared_ptr<EventLoop> loop = nullptr);

// Checks whether this kind works on this host: Unavailable with the missing or forbidden feature;
// ResourceExhausted if the limit on the size of files is too low, or, as a local shortage
// (base/process/shortage.h), if the process has no descriptor or memory left now.
absl::Status probe_shm();

// Whether `address` is a shm address on this host since its last boot.
bool is_local_shm_address(absl::string_view address);

}  // namespace gradwire::transport
