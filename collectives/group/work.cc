#include "gradwire/collectives/work.h"

#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

// The error of an enqueued operation that has already failed on its device; else OK.
absl::Status ended_on_device(const std::shared_ptr<Enqueued>& enqueued) {
  return enqueued == nullptr ? absl::OkStatus() : enqueued->ended().value_or(absl::OkStatus());
}

}  // namespace

void Work::wait() const {
  ended_.wait();
  if (enqueued_ == nullptr) return;
  // ended_ says that the operation was enqueued, not that the device has executed it. An operation that has
  // failed on the device meanwhile must throw, and not return with a stream that waits for it.
  throw_if_error(ended_on_device(enqueued_));
  enqueued_->order_current_stream();
}

bool Work::wait_for(absl::Duration timeout) const {
  if (!ended_.wait_for(timeout)) return false;
  wait();
  return true;
}

bool Work::is_success() const {
  return is_completed() && ended_.result().ok() && ended_on_device(enqueued_).ok();
}

std::exception_ptr Work::exception() const {
  if (!is_completed()) return nullptr;
  absl::Status status = ended_.result().status();
  if (status.ok()) status = ended_on_device(enqueued_);
  return status.ok() ? nullptr : std::make_exception_ptr(Error(std::move(status)));
}

int Work::source_rank() const {
  const int rank = ended_.wait();
  if (rank < 0)
    throw Error(absl::FailedPreconditionError("source_rank() needs a receive; this is another operation"));
  return rank;
}

}  // namespace gradwire::collectives
