// How a message gets into the ring:
// 1. send() copies large buffers into the arena, without the lock (prepare).
// 2. It writes the message under the lock. If older messages wait, or the ring is full, the message joins
//    the queue.
// 3. write_queued() writes the queue when the reader has made room. The loop calls it, and so does every
//    send() that finds a queue.
//
// A message that is partly written stays first in the queue, because no record of another message may come
// between its records.

#include "gradwire/transport/shm/shm_sender.h"

#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"

namespace gradwire::transport {
namespace {

// Maximum number of rounds of one write_queued() call; the loop continues later. A fast reader could
// otherwise keep the call busy for long.
constexpr int kMaxRounds = 16;

}  // namespace

ShmSender::ShmSender(LoopConnection& connection, ShmContext& context, std::shared_ptr<ControlSocket> socket,
                     Doorbell& doorbell, const ArenaPeer& peer_arena, std::shared_ptr<Pollable> watch)
    : connection_(connection),
      context_(context),
      socket_(std::move(socket)),
      doorbell_(doorbell),
      peer_arena_(peer_arena),
      watch_(std::move(watch)) {}

absl::StatusOr<uint64_t> ShmSender::send(Message&& message) {
  GRADWIRE_RETURN_IF_ERROR(connection_.check_sendable(message, context_.options.limits));
  Outgoing outgoing(std::move(message));
  if (has_large_buffers(outgoing)) prepare(outgoing);
  uint64_t ticket;
  bool queued = false;
  bool dropped = false;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (refusal_.has_value()) return connection_.closed_error(*refusal_);
    ticket = ++last_ticket_;
    // Also before the connection is established; start_in_loop() comes first, then the connection writes
    // the queue.
    if (!ring_.has_value() || !queue_.empty() || !write_locked(outgoing, effects)) {
      queued = !queue_.empty();
      // If large buffers are left, try the arena again when the message is first in the queue.
      outgoing.set_prepared(!has_large_buffers(outgoing));
      const bool begun = outgoing.begun();
      try {
        queue_.push(ticket, std::move(outgoing));
      } catch (const std::bad_alloc&) {
        // The peer cannot read the messages behind one that is not complete.
        if (begun) refusal_ = no_memory();
        if (!begun) --last_ticket_;
        dropped = true;
      }
    }
  }
  if (dropped) {
    if (effects.published) connection_.close(no_memory(), absl::ZeroDuration());
    return no_memory();
  }
  // Poll the ring, because an answer is expected. Without memory the doorbell announces it.
  run_contained("polling shared memory", [&] { connection_.loop().activate(watch_); });
  apply(effects);
  // The reader may have made room that the loop has not seen yet. Besides, a thread that sends faster than
  // the reader reads should help to write the queue.
  if (queued) write_queued();
  return ticket;
}

bool ShmSender::has_large_buffers(const Outgoing& outgoing) const {
  const std::vector<Buffer>& buffers = outgoing.message().buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].size() > context_.options.max_ring_buffer_bytes && !outgoing.in_arena(i)) return true;
  }
  return false;
}

// Puts large buffers into the arena, as far as it has room, and there is memory for that.
void ShmSender::prepare(Outgoing& outgoing) noexcept {
  run_contained("copying a message to shared memory", [&] { fill_blocks(outgoing); });
}

void ShmSender::fill_blocks(Outgoing& outgoing) {
  outgoing.set_prepared(true);
  // Pairs with the release in start_in_loop(). The object lives as long as the connection.
  ArenaOwner* const arena = arena_.load(std::memory_order_acquire);
  if (arena == nullptr) return;
  bool any = false;
  for (std::size_t i = 0; i < outgoing.message().buffers.size(); ++i) {
    const Buffer& buffer = outgoing.message().buffers[i];
    if (buffer.size() <= context_.options.max_ring_buffer_bytes || outgoing.in_arena(i)) continue;
    const absl::optional<Outgoing::Block> block = block_for(*arena, buffer);
    if (!block.has_value()) continue;
    any = true;
    // The owner of the original is destroyed here, without the lock. If the block was claimed, the end of its
    // owner has no effect any more.
    outgoing.set_block(i, *block);
  }
  if (any) keep_trimming();
}

// In order of cost: a block of the peer that it may have back, a block that the program has filled, a copy.
absl::optional<Outgoing::Block> ShmSender::block_for(ArenaOwner& arena, const Buffer& buffer) {
  ShmCounters& counters = *context_.counters;
  if (const absl::optional<uint64_t> name = peer_arena_.claim(buffer)) {
    counters.moved_bytes.fetch_add(buffer.size(), std::memory_order_relaxed);
    return Outgoing::Block{*name, BufferEntry::kSentBack};
  }
  if (const absl::optional<ArenaBlock> block = arena.claim(buffer)) {
    counters.moved_bytes.fetch_add(buffer.size(), std::memory_order_relaxed);
    return Outgoing::Block{block->name, BufferEntry::kInArena};
  }
  const absl::optional<ArenaBlock> block = arena.take(buffer.size());
  if (!block.has_value()) {
    counters.ring_bytes.fetch_add(buffer.size(), std::memory_order_relaxed);
    no_room_last_.store(absl::ToUnixNanos(Clock::system().now()), std::memory_order_relaxed);
    no_room_bytes_.fetch_add(buffer.size(), std::memory_order_relaxed);
    return absl::nullopt;
  }
  copy_.copy(block->data, buffer.data(), buffer.size());
  arena.commit(*block);
  counters.arena_bytes.fetch_add(buffer.size(), std::memory_order_relaxed);
  return Outgoing::Block{block->name, BufferEntry::kInArena};
}

// Returns whether the message is completely written. Otherwise it must be put, or stay, in the queue.
//
// The ring may be full. The reader rings only if it sees the request for room, but it may make room just
// before the request becomes visible. So:
// 1. Set blocked_. While the loop is active it polls for room; otherwise ask the reader to ring.
// 2. Check the room once more after the request.
bool ShmSender::write_locked(Outgoing& outgoing, Effects& effects) {
  bool published = false;
  bool asked = false;
  Outgoing::Progress progress;
  while (true) {
    progress = outgoing.write(*ring_, published, needed_room_);
    if (progress != Outgoing::Progress::kNoRoom || asked || ring_->broken()) break;
    blocked_.store(true);
    if (!polled_.load()) ring_->ask_for_room();
    asked = true;
  }
  if (progress != Outgoing::Progress::kNoRoom) blocked_.store(false, std::memory_order_relaxed);
  if (published && ring_->take_armed()) effects.ring = true;
  effects.published = effects.published || published;
  effects.broken = ring_->broken();
  effects.more = progress == Outgoing::Progress::kMore;
  return progress == Outgoing::Progress::kDone;
}

class ShmSender::Preparing {
 public:
  explicit Preparing(ShmSender& sender) : sender_(sender) {}
  ~Preparing() {
    MutexLock lock(sender_.mutex_);
    sender_.preparing_ = false;
    sender_.prepared_.notify_all();
  }
  Preparing(const Preparing&) = delete;
  Preparing& operator=(const Preparing&) = delete;

 private:
  ShmSender& sender_;
};

bool ShmSender::write_queued() {
  bool any = false;
  for (int round = 0; round < kMaxRounds; ++round) {
    Outgoing* unprepared = nullptr;
    Effects effects;
    {
      MutexLock lock(mutex_);
      if (preparing_ || !ring_.has_value()) return any;
      while (!queue_.empty()) {
        Outgoing& front = queue_.front();
        if (!front.prepared()) {
          // Copy the buffers without the lock. `preparing_` makes other threads leave the queue's first
          // message alone, and a deque does not move its elements when others are appended.
          preparing_ = true;
          unprepared = &front;
          break;
        }
        // First what may throw: the message must not be destroyed here. The loop tries again.
        if (effects.written.size() == effects.written.capacity() &&
            !run_contained("sending", [&] { effects.written.reserve(2 * effects.written.size() + 8); })) {
          effects.more = true;
          break;
        }
        if (!write_locked(front, effects)) break;
        effects.written.push_back(queue_.pop());
      }
      effects.drained = queue_.empty() && refusal_.has_value();
    }
    any = any || effects.published || unprepared != nullptr;
    const bool more = std::exchange(effects.more, false);
    apply(effects);
    if (unprepared != nullptr) {
      // preparing_ keeps the message in the queue meanwhile. Other threads wait for its end, also if there is
      // an exception: the rest of the message then goes through the ring.
      const Preparing preparing(*this);
      prepare(*unprepared);
    } else if (!more) {
      return any;
    }
  }
  Effects later;
  later.more = true;
  apply(later);
  return any;
}

// Rings and posts tasks without the lock: a system call would delay other senders. The written messages are
// destroyed together with `effects`, by the caller.
void ShmSender::apply(Effects& effects) noexcept {
  if (effects.ring) {
    context_.counters->doorbells.fetch_add(1, std::memory_order_relaxed);
    doorbell_.ring();
  }
  if (!effects.more && !effects.drained && !effects.broken) return;
  const bool posted = run_contained("sending", [&] {
    connection_.post([this, more = effects.more, drained = effects.drained, broken = effects.broken] {
      if (more) write_queued();
      if (drained) connection_.drained_in_loop();
      if (broken) connection_.fail_in_loop(absl::InvalidArgumentError("the peer corrupted the ring"));
    });
  });
  // Nobody would go on.
  if (!posted) connection_.close(no_memory(), absl::ZeroDuration());
}

bool ShmSender::borrows(uint64_t ticket) {
  MutexLock lock(mutex_);
  const Outgoing* const outgoing = queue_.find(ticket);
  // prepare() may be replacing its buffers. They must not be read meanwhile.
  return outgoing != nullptr && (preparing_ || !outgoing->borrowed_parts().empty());
}

void ShmSender::capture(uint64_t ticket) {
  assert(!on_duty());
  std::vector<Outgoing::BorrowedPart> parts;
  {
    MutexLock lock(mutex_);
    if (queue_.find(ticket) == nullptr) return;
    // prepare() may be reading the caller's memory, or replacing buffers by blocks.
    while (preparing_) prepared_.wait(mutex_);
    const Outgoing* const outgoing = queue_.find(ticket);
    if (outgoing == nullptr) return;
    parts = outgoing->borrowed_parts();
  }
  if (parts.empty()) return;
  // Copy outside the lock. Copies of parts that are written meanwhile are not used.
  std::vector<Outgoing::BorrowedPart> copies;
  copies.reserve(parts.size());
  for (const Outgoing::BorrowedPart& part : parts) {
    const std::size_t size = part.buffer.size() - part.offset;
    absl::StatusOr<Buffer> copy = context_.pool->allocate(size);
    if (!copy.ok()) {
      // The bytes of this moment cannot be preserved, and later bytes would be wrong: close the connection.
      connection_.close(with_context(copy.status(), absl::StrCat("cannot capture a message for ",
                                                                 connection_.peer_address())),
                        absl::ZeroDuration());
      return;
    }
    std::memcpy(copy->data(), static_cast<const char*>(part.buffer.data()) + part.offset, size);
    copies.push_back({part.index, part.offset, *std::move(copy)});
  }
  context_.trim_pool();
  MutexLock lock(mutex_);
  while (preparing_) prepared_.wait(mutex_);
  if (Outgoing* const outgoing = queue_.find(ticket)) outgoing->replace_borrowed(copies);
}

std::size_t ShmSender::queued_bytes() {
  MutexLock lock(mutex_);
  return queue_.bytes();
}

Connection::NoRoom ShmSender::no_room() const {
  const uint64_t bytes = no_room_bytes_.load(std::memory_order_relaxed);
  if (bytes == 0) return {};
  return {bytes, absl::FromUnixNanos(no_room_last_.load(std::memory_order_relaxed))};
}

absl::StatusOr<Buffer> ShmSender::allocate(std::size_t size) {
  ArenaOwner* const arena = arena_.load(std::memory_order_acquire);
  if (arena != nullptr && size > context_.options.max_ring_buffer_bytes) {
    if (absl::optional<Buffer> leased = arena->lease(size)) {
      keep_trimming();
      return *std::move(leased);
    }
  }
  context_.trim_pool();
  return context_.pool->allocate(size);
}

void ShmSender::start_in_loop(RingProducer ring, uint64_t max_arena_bytes) {
  ArenaOwner::Options arena;
  arena.max_bytes = max_arena_bytes;
  arena.max_idle_bytes = context_.options.max_idle_arena_bytes;
  arena.max_idle_bytes_of_all = context_.options.max_idle_arenas_bytes;
  arena.all_mapped_bytes = {context_.counters, &context_.counters->mapped_bytes};
  arena.all_arenas = {context_.counters, &context_.counters->arenas};
  arena.announce = [socket = socket_](const SegmentPacket& segment, const Descriptor& memory) {
    return socket->send(&segment, sizeof(segment), memory.get());
  };
  arena.retract = [socket = socket_](const DropPacket& drop) { return socket->send(&drop, sizeof(drop)); };
  arena_storage_ = std::make_shared<ArenaOwner>(std::move(arena));
  arena_.store(arena_storage_.get(), std::memory_order_release);
  started_ = true;
  MutexLock lock(mutex_);
  ring_.emplace(std::move(ring));
}

void ShmSender::refuse(const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (!refusal_.has_value()) refusal_ = reason;
}

void ShmSender::end_in_loop(const absl::Status& reason) {
  refuse(reason);
  connection_.loop().cancel_in_loop(trim_timer_);
  started_ = false;
  // Both are destroyed without the lock: buffers belong to users, and unmapping the ring takes long.
  absl::optional<RingProducer> ring;
  {
    MutexLock lock(mutex_);
    // Wait for a running prepare(): the buffers that it copies must stay valid.
    while (preparing_) prepared_.wait(mutex_);
    queue_.clear(unsent_);
    ring.swap(ring_);
  }
  unsent_.clear();
  if (arena_storage_ != nullptr) arena_storage_->close();
}

bool ShmSender::drained() {
  MutexLock lock(mutex_);
  return queue_.empty();
}

// The loop goes to sleep. Pairs with write_locked(): each side writes its own flag, then reads the other's.
// So either this sees that a message is blocked and asks the reader to ring, or write_locked() sees that
// the loop does not poll and asks. The loop then calls has_data_in_loop(), which finds room that was made
// before the request.
void ShmSender::arm_in_loop() {
  polled_.store(false);
  if (!blocked_.load()) return;
  MutexLock lock(mutex_);
  if (ring_.has_value()) ring_->ask_for_room();
}

// The check without the lock comes first: the loop calls this in each round, and most rings are not full.
bool ShmSender::has_data_in_loop() {
  if (!blocked()) return false;
  MutexLock lock(mutex_);
  return ring_.has_value() && blocked() && (ring_->has_room(needed_room_) || ring_->broken());
}

void ShmSender::keep_trimming() {
  if (trimming_.load(std::memory_order_relaxed) || trimming_.exchange(true)) return;
  const bool posted = run_contained("returning memory of an arena", [&] {
    connection_.post([this] {
      if (started_) schedule_trim_in_loop();
    });
  });
  // The next message with a large buffer tries again.
  if (!posted) trimming_.store(false);
}

void ShmSender::schedule_trim_in_loop() {
  trim_timer_ = connection_.schedule_in_loop(Clock::system().now() + context_.options.arena_idle_time,
                                             [this] { trim_in_loop(); });
}

void ShmSender::trim_in_loop() {
  if (arena_storage_->trim()) {
    schedule_trim_in_loop();
    return;
  }
  trimming_.store(false);
  // A thread may have used the arena again in between.
  if (arena_storage_->mapped_bytes() > 0) keep_trimming();
}

}  // namespace gradwire::transport
