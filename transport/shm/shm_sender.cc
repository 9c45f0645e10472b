#include "gradwire/transport/shm/shm_sender.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/shm/memory/copy.h"

namespace gradwire::transport {
namespace {

// What one call writes of the queue before the loop carries on: a fast reader could keep it there for long.
constexpr int kTurns = 16;

}  // namespace

ShmSender::ShmSender(LoopConnection& connection, ShmContext& context, std::shared_ptr<ControlSocket> socket,
                     std::shared_ptr<Pollable> watch)
    : connection_(connection), context_(context), socket_(std::move(socket)), watch_(std::move(watch)) {}

absl::StatusOr<uint64_t> ShmSender::send(Message&& message) {
  GRADWIRE_RETURN_IF_ERROR(connection_.check_sendable(message, context_.options.limits));
  Outgoing outgoing(std::move(message));
  if (has_large_buffers(outgoing)) prepare(outgoing);
  uint64_t ticket;
  bool queued = false;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (refusal_.has_value()) return connection_.closed_error(*refusal_);
    ticket = ++last_ticket_;
    if (!ring_.has_value() || !queue_.empty() || !write_locked(outgoing, effects)) {
      queued = !queue_.empty();
      // When its turn comes there may be room in the arena.
      outgoing.set_prepared(!has_large_buffers(outgoing));
      queue_.push(ticket, std::move(outgoing));
    }
  }
  // An answer is expected.
  connection_.loop().activate(watch_);
  apply(effects);
  // The reader may have made room that the loop has not seen yet; and whoever sends faster than is read
  // helps.
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

// Brings large buffers into the arena, as far as it has room.
void ShmSender::prepare(Outgoing& outgoing) {
  outgoing.set_prepared(true);
  ShmCounters& counters = *context_.counters;
  ArenaOwner* const arena = arena_.load(std::memory_order_acquire);
  if (arena == nullptr) return;
  bool any = false;
  for (std::size_t i = 0; i < outgoing.message().buffers.size(); ++i) {
    const Buffer& buffer = outgoing.message().buffers[i];
    if (buffer.size() <= context_.options.max_ring_buffer_bytes || outgoing.in_arena(i)) continue;
    absl::optional<ArenaBlock> block = arena->claim(buffer);
    if (block.has_value()) {
      counters.moved_bytes.fetch_add(buffer.size(), std::memory_order_relaxed);
    } else {
      block = arena->take(buffer.size());
      if (!block.has_value()) {
        counters.ring_bytes.fetch_add(buffer.size(), std::memory_order_relaxed);
        continue;
      }
      copy_bytes(block->data, buffer.data(), buffer.size());
      arena->commit(*block);
      counters.arena_bytes.fetch_add(buffer.size(), std::memory_order_relaxed);
    }
    any = true;
    outgoing.set_block(i, block->name);
  }
  if (any) keep_trimming();
}

// Whether all of it is written. Otherwise it belongs into the queue, or stays there.
bool ShmSender::write_locked(Outgoing& outgoing, Effects& effects) {
  bool published = false;
  bool asked = false;
  Outgoing::Progress progress;
  while (true) {
    progress = outgoing.write(*ring_, published, needed_room_);
    if (progress != Outgoing::Progress::kNoRoom || asked || ring_->broken()) break;
    // The loop looks for room while it is hot; else the reader is asked to ring. Look once more then: it may
    // have made room before it could know.
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

bool ShmSender::write_queued() {
  bool any = false;
  for (int turn = 0; turn < kTurns; ++turn) {
    Outgoing* unprepared = nullptr;
    Effects effects;
    {
      MutexLock lock(mutex_);
      if (preparing_ || !ring_.has_value()) return any;
      while (!queue_.empty()) {
        Outgoing& front = queue_.front();
        if (!front.prepared()) {
          preparing_ = true;
          unprepared = &front;
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
      // Nobody takes it out of the queue meanwhile.
      prepare(*unprepared);
      MutexLock lock(mutex_);
      preparing_ = false;
      prepared_.notify_all();
    } else if (!more) {
      return any;
    }
  }
  Effects later;
  later.more = true;
  apply(later);
  return any;
}

void ShmSender::apply(Effects& effects) {
  if (effects.ring) {
    context_.counters->doorbells.fetch_add(1, std::memory_order_relaxed);
    socket_->ring();
  }
  if (!effects.more && !effects.drained && !effects.broken) return;
  connection_.loop().post([this, connection = connection_.shared_from_this(), more = effects.more,
                           drained = effects.drained, broken = effects.broken] {
    if (more) write_queued();
    if (drained) connection->drained_in_loop();
    if (broken) connection->fail_in_loop(absl::InvalidArgumentError("the other end spoilt the ring"));
  });
}

void ShmSender::capture(uint64_t ticket) {
  std::vector<Outgoing::BorrowedPart> parts;
  {
    MutexLock lock(mutex_);
    while (preparing_) prepared_.wait(mutex_);
    const Outgoing* const outgoing = queue_.find(ticket);
    if (outgoing == nullptr) return;
    parts = outgoing->borrowed_parts();
  }
  if (parts.empty()) return;
  // Copied outside the lock; what leaves meanwhile is copied for nothing.
  std::vector<Outgoing::BorrowedPart> copies;
  copies.reserve(parts.size());
  for (const Outgoing::BorrowedPart& part : parts) {
    const std::size_t size = part.buffer.size() - part.offset;
    absl::StatusOr<Buffer> copy = context_.pool->allocate(size);
    if (!copy.ok()) {
      // The rest cannot be sent as it was: to send anything else would be wrong.
      connection_.close(
          with_context(copy.status(), absl::StrCat("a message for ", connection_.peer_address())),
          absl::ZeroDuration());
      return;
    }
    copy_bytes(copy->data(), static_cast<const char*>(part.buffer.data()) + part.offset, size);
    copies.push_back({part.index, part.offset, *std::move(copy)});
  }
  context_.tend_pool();
  MutexLock lock(mutex_);
  while (preparing_) prepared_.wait(mutex_);
  if (Outgoing* const outgoing = queue_.find(ticket)) outgoing->replace_borrowed(copies);
}

std::size_t ShmSender::queued_bytes() {
  MutexLock lock(mutex_);
  return queue_.bytes();
}

absl::StatusOr<Buffer> ShmSender::allocate(std::size_t size) {
  ArenaOwner* const arena = arena_.load(std::memory_order_acquire);
  if (arena != nullptr && size > context_.options.max_ring_buffer_bytes) {
    if (absl::optional<Buffer> leased = arena->lease(size)) {
      keep_trimming();
      return *std::move(leased);
    }
  }
  context_.tend_pool();
  return context_.pool->allocate(size);
}

void ShmSender::start_in_loop(RingProducer ring, uint64_t max_arena_bytes) {
  ArenaOwner::Options arena;
  arena.max_bytes = max_arena_bytes;
  arena.max_idle_bytes = context_.options.max_idle_arena_bytes;
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
  std::deque<Outgoing> unsent;
  absl::optional<RingProducer> ring;
  {
    MutexLock lock(mutex_);
    // The memory that is being copied must stay until it has been.
    while (preparing_) prepared_.wait(mutex_);
    unsent = queue_.clear();
    ring.swap(ring_);
  }
  if (arena_storage_ != nullptr) arena_storage_->close();
}

bool ShmSender::drained() {
  MutexLock lock(mutex_);
  return queue_.empty();
}

void ShmSender::arm_in_loop() {
  polled_.store(false);
  if (!blocked_.load()) return;
  MutexLock lock(mutex_);
  if (ring_.has_value()) ring_->ask_for_room();
}

bool ShmSender::has_data_in_loop() {
  if (!blocked()) return false;
  MutexLock lock(mutex_);
  return ring_.has_value() && blocked() && (ring_->has_room(needed_room_) || ring_->broken());
}

void ShmSender::keep_trimming() {
  if (trimming_.load(std::memory_order_relaxed) || trimming_.exchange(true)) return;
  connection_.loop().post([this, connection = connection_.shared_from_this()] {
    if (started_) schedule_trim_in_loop();
  });
}

void ShmSender::schedule_trim_in_loop() {
  trim_timer_ = connection_.loop().schedule_in_loop(
      Clock::system().now() + context_.options.arena_idle_time,
      [this, connection = connection_.shared_from_this()] { trim_in_loop(); });
}

void ShmSender::trim_in_loop() {
  if (arena_storage_->trim()) {
    schedule_trim_in_loop();
    return;
  }
  trimming_.store(false);
  // Somebody may have begun to use it again in between.
  if (arena_storage_->mapped_bytes() > 0) keep_trimming();
}

}  // namespace gradwire::transport
