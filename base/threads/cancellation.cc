#include "gradwire/base/threads/cancellation.h"

#include <map>

#include "gradwire/base/mutex.h"

namespace gradwire {

struct CancellationToken::State {
  Mutex mutex;
  absl::Status reason ABSL_GUARDED_BY(mutex);
  std::map<uint64_t, absl::AnyInvocable<void()>> callbacks ABSL_GUARDED_BY(mutex);
  uint64_t next_handle ABSL_GUARDED_BY(mutex) = 1;
};

absl::Status CancellationToken::reason() const {
  if (state_ == nullptr) return absl::OkStatus();
  MutexLock lock(state_->mutex);
  return state_->reason;
}

uint64_t CancellationToken::on_cancelled(absl::AnyInvocable<void()> callback) const {
  if (state_ == nullptr) return 0;
  {
    MutexLock lock(state_->mutex);
    if (state_->reason.ok()) {
      state_->callbacks.emplace(state_->next_handle, std::move(callback));
      return state_->next_handle++;
    }
  }
  // The token has fired before. Run the callback without the lock, because it may use the token.
  callback();
  return 0;
}

// If cancel() has taken the callbacks already, the callback is not in the table any more: it is running or
// will run, and this call has no effect.
void CancellationToken::forget(uint64_t handle) const {
  if (state_ == nullptr) return;
  absl::AnyInvocable<void()> dropped;  // Destroyed outside the lock.
  MutexLock lock(state_->mutex);
  auto found = state_->callbacks.find(handle);
  if (found == state_->callbacks.end()) return;
  dropped = std::move(found->second);
  state_->callbacks.erase(found);
}

CancellationSource::CancellationSource() : state_(std::make_shared<CancellationToken::State>()) {}

void CancellationSource::cancel(absl::Status reason) const {
  std::map<uint64_t, absl::AnyInvocable<void()>> callbacks;
  {
    MutexLock lock(state_->mutex);
    if (!state_->reason.ok()) return;
    state_->reason = reason.ok() ? absl::CancelledError("cancelled") : std::move(reason);
    callbacks.swap(state_->callbacks);
  }
  // Run without the lock: a callback may call reason(), forget() or on_cancelled(). The first reason was
  // stored above, so a callback that is registered from now on runs at once.
  for (auto& [handle, callback] : callbacks) callback();
}

}  // namespace gradwire
