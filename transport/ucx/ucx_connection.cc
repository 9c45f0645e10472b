#include "gradwire/transport/ucx/ucx_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"

namespace gradwire::transport {

UcxConnection::UcxConnection(std::shared_ptr<UcxContext> context, std::string peer_address)
    : context_(std::move(context)), peer_address_(std::move(peer_address)) {}

UcxConnection::~UcxConnection() = default;

void UcxConnection::close(absl::Status reason, absl::Duration flush) {
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

void UcxConnection::begin_close_in_loop(absl::Time deadline) {
  absl::Status reason;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kClosing) return;
    reason = *close_reason_;
  }
  if (deadline <= Clock::system().now()) {
    finish_in_loop(std::move(reason));
    return;
  }
  close_timer_ = context_->loop->schedule_in_loop(
      deadline, [self = shared_from_this(), reason] { self->finish_in_loop(reason); });
  context_->touch_in_loop(*this);
  context_->heat_in_loop();
}

void UcxConnection::shut_down_in_loop() {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) return;
  }
  finish_in_loop(
      absl::CancelledError(absl::StrCat("the transport shut down; connection with ", peer_address_)));
}

void UcxConnection::refuse_in_loop() {
  MutexLock lock(mutex_);
  state_ = State::kClosed;
  close_reason_ = absl::CancelledError("the connection was refused");
}

void UcxConnection::endpoint_failed_in_loop(ucs_status_t status) {
  endpoint_failed_ = true;
  fail_in_loop(status == UCS_ERR_CONNECTION_RESET ? unavailable("the other end closed it")
                                                  : unavailable(ucs_status_string(status)));
}

// The first failure counts; the connection ends when it settles.
void UcxConnection::fail_in_loop(absl::Status failure) {
  if (!failure_.has_value()) failure_ = std::move(failure);
  context_->touch_in_loop(*this);
}

void UcxConnection::settle_in_loop() {
  touched_ = false;
  const std::shared_ptr<UcxConnection> self = shared_from_this();
  {
    MutexLock lock(mutex_);
    settle_posted_ = false;
  }
  if (listener_ == nullptr) {
    retire_in_loop();
    return;
  }
  deliver_in_loop();
  // A listener that is called runs no code of the loop, so that this is still open or closing.
  if (failure_.has_value()) {
    if (!connected_ && next_candidate_ < candidates_.size()) {
      candidate_failed_in_loop(std::string(failure_->message()));
    } else {
      finish_in_loop(*failure_);
    }
    return;
  }
  if (peer_left_) {
    finish_in_loop(unavailable("the other end closed it"));
    return;
  }
  post_queued_in_loop();
}

void UcxConnection::finish_in_loop(absl::Status reason) {
  std::deque<std::unique_ptr<UcxOutgoing>> unsent;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    if (close_reason_.has_value()) {
      reason = *close_reason_;
    } else {
      close_reason_ = reason;
    }
    unsent.swap(queue_);
  }
  const std::shared_ptr<UcxConnection> self = shared_from_this();
  EventLoop& loop = *context_->loop;
  loop.cancel_in_loop(candidate_timer_);
  loop.cancel_in_loop(close_timer_);
  drop_incoming_in_loop();
  for (const auto& message : unsent) queued_bytes_.fetch_sub(message->bytes, std::memory_order_relaxed);
  unsent.clear();
  context_->retiring.insert(self);
  if (outstanding_ > 0 && endpoint_ != nullptr && !endpoint_failed_) {
    linger_timer_ = loop.schedule_in_loop(Clock::system().now() + context_->options.linger_time,
                                          [self] { self->close_endpoint_in_loop(); });
  }
  if (const std::shared_ptr<ConnectionListener> listener = std::exchange(listener_, nullptr)) {
    listener->on_closed(*this, std::move(reason));
  }
  context_->connections.erase(self);
  retire_in_loop();
  context_->heat_in_loop();
}

// The other end may be reading this one's memory by rendezvous: before it has, the memory stays and so does the
// endpoint.
void UcxConnection::retire_in_loop() {
  if (endpoint_ != nullptr && (outstanding_ == 0 || endpoint_failed_)) close_endpoint_in_loop();
  if (endpoint_ != nullptr || outstanding_ > 0) return;
  context_->loop->cancel_in_loop(linger_timer_);
  context_->retiring.erase(shared_from_this());
}

void UcxConnection::close_endpoint_in_loop() {
  if (endpoint_ == nullptr) return;
  // What UCX has of it comes back while it is closed, or soon after.
  context_->close_endpoint_in_loop(std::exchange(endpoint_, nullptr));
  endpoint_failed_ = false;
  context_->touch_in_loop(*this);
}

void UcxConnection::worker_ended_in_loop() {
  context_->loop->cancel_in_loop(linger_timer_);
  endpoint_ = nullptr;
  posted_.clear();
  abandoned_.clear();
  arrivals_.clear();
}

absl::Status UcxConnection::unavailable(absl::string_view cause) const {
  return absl::UnavailableError(absl::StrCat("connection with ", peer_address_, ": ", cause));
}

}  // namespace gradwire::transport
