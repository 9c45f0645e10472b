#include "gradwire/transport/shm/shm_connection.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"

namespace gradwire::transport {

ShmConnection::ShmConnection(std::shared_ptr<ShmContext> context, std::string peer_address)
    : context_(std::move(context)),
      peer_address_(std::move(peer_address)),
      watch_(std::make_shared<RingWatch>(*this)),
      pollable_(watch_),
      peer_arena_(context_->options.max_arena_bytes),
      reader_(context_->options.limits, *context_->pool, peer_arena_) {}

ShmConnection::~ShmConnection() = default;

void ShmConnection::close(absl::Status reason, absl::Duration flush) {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) return;
    state_ = State::kClosing;
    close_reason_ = std::move(reason);
  }
  close_called_.store(true, std::memory_order_relaxed);
  const absl::Time deadline =
      flush > absl::ZeroDuration() ? Clock::system().now() + flush : absl::InfinitePast();
  context_->loop->post([self = shared_from_this(), deadline] { self->begin_close_in_loop(deadline); });
}

absl::StatusOr<Buffer> ShmConnection::allocate(std::size_t size) {
  ArenaOwner* const arena = arena_.load(std::memory_order_acquire);
  if (arena != nullptr && size > context_->options.max_ring_buffer_bytes) {
    if (absl::optional<Buffer> leased = arena->lease(size)) {
      keep_trimming();
      return *std::move(leased);
    }
  }
  context_->tend_pool();
  return context_->pool->allocate(size);
}

void ShmConnection::shut_down_in_loop() {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) return;
  }
  finish_in_loop(
      absl::CancelledError(absl::StrCat("the transport shut down; connection with ", peer_address_)));
}

void ShmConnection::begin_close_in_loop(absl::Time deadline) {
  absl::Status reason;
  bool drained;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kClosing) return;
    reason = *close_reason_;
    drained = connected_ && queue_.empty();
  }
  // What is in the ring reaches the other end, though this one is gone.
  if (drained || deadline <= Clock::system().now()) {
    finish_in_loop(std::move(reason));
    return;
  }
  close_timer_ = context_->loop->schedule_in_loop(
      deadline, [self = shared_from_this(), reason] { self->finish_in_loop(reason); });
}

void ShmConnection::finish_in_loop(absl::Status reason) {
  std::deque<Outgoing> unsent;
  absl::optional<RingProducer> outgoing;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    if (close_reason_.has_value()) {
      reason = *close_reason_;
    } else {
      close_reason_ = reason;
    }
    // The memory that is being copied must stay until it has been.
    while (preparing_) prepared_.wait(mutex_);
    unsent = queue_.clear();
    outgoing.swap(outgoing_);
  }
  const std::shared_ptr<ShmConnection> self = shared_from_this();
  EventLoop& loop = *context_->loop;
  loop.cancel_in_loop(connect_timer_);
  loop.cancel_in_loop(close_timer_);
  loop.cancel_in_loop(trim_timer_);
  loop.forget_in_loop(*watch_);
  watch_->detach_in_loop();
  if (handler_id_ != 0) loop.remove_in_loop(socket_->descriptor(), handler_id_);
  if (arena_storage_ != nullptr) arena_storage_->close();
  socket_->close();
  connected_ = false;
  own_ring_.reset();
  incoming_.reset();
  reader_.reset();
  unsent.clear();
  on_accept_.reset();
  if (listener_ != nullptr) {
    listener_->on_closed(*this, std::move(reason));
    listener_.reset();
  }
  context_->connections.erase(self);
  context_->end_if_done_in_loop();
}

absl::Status ShmConnection::unavailable(absl::string_view cause) const {
  return absl::UnavailableError(absl::StrCat("connection with ", peer_address_, ": ", cause));
}

}  // namespace gradwire::transport
