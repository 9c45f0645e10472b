#include "gradwire/store/c10d/c10d_peer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {

C10dPeer::C10dPeer(std::shared_ptr<transport::EventLoop> loop, Descriptor socket, std::string address,
                   uint64_t session, std::weak_ptr<Owner> owner, std::size_t max_unsent_bytes)
    : connection_(std::make_shared<C10dConnection>(std::move(loop), std::move(socket))),
      address_(std::move(address)),
      session_number_(session),
      owner_(std::move(owner)),
      max_unsent_bytes_(max_unsent_bytes),
      session_(random_id()) {}

void C10dPeer::start_in_loop() {
  // Weak: the owner has this object, and the loop has the connection.
  connection_->start_in_loop({.on_bytes =
                                  [weak = weak_from_this()](absl::string_view bytes) {
                                    if (const auto self = weak.lock()) self->receive_in_loop(bytes);
                                  },
                              .on_closed =
                                  [weak = weak_from_this()] {
                                    const auto self = weak.lock();
                                    const auto owner = self == nullptr ? nullptr : self->owner_.lock();
                                    if (owner != nullptr) owner->closed_in_loop(self->session_number_);
                                  }});
  receiving_ = true;
  const absl::Status status = session_.start(*this);
  receiving_ = false;
  finish_in_loop(status);
}

void C10dPeer::receive_in_loop(absl::string_view bytes) {
  receiving_ = true;
  const absl::Status status = session_.receive(bytes, *this);
  receiving_ = false;
  finish_in_loop(status);
}

// The answers before the error are sent: the client has asked for them.
void C10dPeer::finish_in_loop(const absl::Status& status) {
  connection_->send_in_loop(session_.take_output());
  const absl::Status failure = status.ok() ? std::exchange(failure_, absl::OkStatus()) : status;
  if (!failure.ok()) {
    log(LogLevel::kWarning, "the store closes the connection from the TCPStore at ", address_, ": ",
        failure.message());
    close_in_loop(failure, absl::Seconds(1));
  } else if (connection_->unsent_bytes() > max_unsent_bytes_) {
    log(LogLevel::kWarning, "the store closes the connection from the TCPStore at ", address_,
        ": it goes on sending requests but does not read the answers");
    close_in_loop(absl::ResourceExhaustedError("answers not read"), absl::ZeroDuration());
  }
}

// The output is checked after each answer, so that requests that arrive together cannot exceed the limit by
// much.
absl::Status C10dPeer::call(const proto::Request& request) {
  const std::shared_ptr<Owner> owner = owner_.lock();
  if (owner == nullptr) return absl::UnavailableError("the store's server has ended");
  GRADWIRE_RETURN_IF_ERROR(owner->call_in_loop(session_number_, request));
  GRADWIRE_RETURN_IF_ERROR(std::exchange(failure_, absl::OkStatus()));
  if (session_.output_bytes() + connection_->unsent_bytes() <= max_unsent_bytes_ + kMaxMultiBytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError("the client goes on sending requests but does not read the answers");
}

void C10dPeer::cancel(uint64_t request) {
  if (const std::shared_ptr<Owner> owner = owner_.lock()) owner->cancel_in_loop(session_number_, request);
}

int64_t C10dPeer::add_workers(int64_t n) {
  const std::shared_ptr<Owner> owner = owner_.lock();
  return owner == nullptr ? 0 : owner->add_workers_in_loop(n);
}

void C10dPeer::send_in_loop(const proto::Response& response) {
  const absl::Status status = session_.answer(response);
  if (failure_.ok()) failure_ = status;
  if (!receiving_) finish_in_loop(absl::OkStatus());
}

void C10dPeer::close_in_loop(const absl::Status&, absl::Duration flush) { connection_->close_in_loop(flush); }

}  // namespace gradwire::store
