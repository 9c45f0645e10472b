// The part of ShmConnection that any thread runs: sending, queueing, capturing.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/shm/memory/copy.h"
#include "gradwire/transport/shm/message_sizes.h"
#include "gradwire/transport/shm/shm_connection.h"

namespace gradwire::transport {
namespace {

// What one call writes of the queue before the loop carries on: a fast reader could keep it there for long.
constexpr int kTurns = 16;

absl::Status check_sizes(const Message& message, const Limits& limits) {
  MessageSizes sizes(limits);
  GRADWIRE_RETURN_IF_ERROR(sizes.begin(message.header.size(), message.buffers.size()));
  for (const Buffer& buffer : message.buffers) GRADWIRE_RETURN_IF_ERROR(sizes.add(buffer.size()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> ShmConnection::send(Message message) {
  const absl::Status within_limits = check_sizes(message, context_->options.limits);
  if (!within_limits.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message for ", peer_address_, " is too large: ", within_limits.message()));
  }
  Outgoing outgoing(std::move(message));
  if (has_large_buffers(outgoing)) prepare(outgoing);
  uint64_t ticket;
  bool queued = false;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) {
      return absl::UnavailableError(
          absl::StrCat("connection with ", peer_address_, " is closed: ", close_reason_->message()));
    }
    ticket = ++last_ticket_;
    if (!outgoing_.has_value() || !queue_.empty() || !write_locked(outgoing, effects)) {
      queued = !queue_.empty();
      // When its turn comes there may be room in the arena.
      outgoing.set_prepared(!has_large_buffers(outgoing));
      queue_.push(ticket, std::move(outgoing));
    }
  }
  // An answer is expected.
  context_->loop->heat(pollable_);
  apply(effects);
  // The reader may have made room that the loop has not seen yet; and whoever sends faster than is read helps.
  if (queued) write_queued();
  return ticket;
}

bool ShmConnection::has_large_buffers(const Outgoing& outgoing) const {
  const std::vector<Buffer>& buffers = outgoing.message().buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].size() > context_->options.max_ring_buffer_bytes && !outgoing.in_arena(i)) return true;
  }
  return false;
}

// Brings large buffers into the arena, as far as it has room.
void ShmConnection::prepare(Outgoing& outgoing) {
  outgoing.set_prepared(true);
  ShmCounters& counters = *context_->counters;
  ArenaOwner* const arena = arena_.load(std::memory_order_acquire);
  if (arena == nullptr) return;
  bool any = false;
  for (std::size_t i = 0; i < outgoing.message().buffers.size(); ++i) {
    const Buffer& buffer = outgoing.message().buffers[i];
    if (buffer.size() <= context_->options.max_ring_buffer_bytes || outgoing.in_arena(i)) continue;
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
bool ShmConnection::write_locked(Outgoing& outgoing, Effects& effects) {
  bool published = false;
  bool asked = false;
  Outgoing::Progress progress;
  while (true) {
    progress = outgoing.write(*outgoing_, published, needed_room_);
    if (progress != Outgoing::Progress::kNoRoom || asked || outgoing_->broken()) break;
    // The loop looks for room while it is hot; else the reader is asked to ring. Look once more then: it may have made
    // room before it could know.
    blocked_.store(true);
    if (!polled_.load()) outgoing_->ask_for_room();
    asked = true;
  }
  if (progress != Outgoing::Progress::kNoRoom) blocked_.store(false, std::memory_order_relaxed);
  if (published && outgoing_->take_armed()) effects.ring = true;
  effects.published = effects.published || published;
  effects.broken = outgoing_->broken();
  effects.more = progress == Outgoing::Progress::kMore;
  return progress == Outgoing::Progress::kDone;
}

bool ShmConnection::write_queued() {
  bool any = false;
  for (int turn = 0; turn < kTurns; ++turn) {
    Outgoing* unprepared = nullptr;
    Effects effects;
    {
      MutexLock lock(mutex_);
      if (preparing_ || !outgoing_.has_value()) return any;
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
      effects.drained = queue_.empty() && state_ == State::kClosing;
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

void ShmConnection::apply(Effects& effects) {
  if (effects.ring) {
    context_->counters->doorbells.fetch_add(1, std::memory_order_relaxed);
    socket_->ring();
  }
  if (effects.more) {
    context_->loop->post([self = shared_from_this()] { self->write_queued(); });
  }
  if (effects.drained) {
    context_->loop->post([self = shared_from_this()] { self->finish_in_loop(absl::OkStatus()); });
  }
  if (effects.broken) {
    context_->loop->post([self = shared_from_this()] {
      self->finish_in_loop(absl::InvalidArgumentError(
          absl::StrCat("connection with ", self->peer_address_, ": the other end spoilt the ring")));
    });
  }
}

void ShmConnection::capture(uint64_t ticket) {
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
    absl::StatusOr<Buffer> copy = context_->pool->allocate(size);
    if (!copy.ok()) {
      // The rest cannot be sent as it was: to send anything else would be wrong.
      close(with_context(copy.status(), absl::StrCat("a message for ", peer_address_)), absl::ZeroDuration());
      return;
    }
    copy_bytes(copy->data(), static_cast<const char*>(part.buffer.data()) + part.offset, size);
    copies.push_back({part.index, part.offset, *std::move(copy)});
  }
  context_->tend_pool();
  MutexLock lock(mutex_);
  while (preparing_) prepared_.wait(mutex_);
  if (Outgoing* const outgoing = queue_.find(ticket)) outgoing->replace_borrowed(copies);
}

std::size_t ShmConnection::queued_bytes() {
  MutexLock lock(mutex_);
  return queue_.bytes();
}

void ShmConnection::keep_trimming() {
  if (trimming_.load(std::memory_order_relaxed) || trimming_.exchange(true)) return;
  context_->loop->post([self = shared_from_this()] {
    if (!self->connected_) return;
    self->trim_timer_ = self->context_->loop->schedule_in_loop(
        Clock::system().now() + self->context_->options.arena_idle_time, [self] { self->trim_in_loop(); });
  });
}

void ShmConnection::trim_in_loop() {
  if (arena_storage_->trim()) {
    trim_timer_ = context_->loop->schedule_in_loop(Clock::system().now() + context_->options.arena_idle_time,
                                                   [self = shared_from_this()] { self->trim_in_loop(); });
    return;
  }
  trimming_.store(false);
  // Somebody may have begun to use it again in between.
  if (arena_storage_->mapped_bytes() > 0) keep_trimming();
}

}  // namespace gradwire::transport
