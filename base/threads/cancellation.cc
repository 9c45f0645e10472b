#include "gradwire/base/threads/cancellation.h"

#include <atomic>
#include <map>

#include "gradwire/base/log/contained.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/execution_state.h"

namespace gradwire {

struct CancellationToken::State {
  struct Callback {
    absl::AnyInvocable<void()> run;
    bool is_inline = false;
  };

  Mutex mutex;
  absl::Status reason ABSL_GUARDED_BY(mutex);
  std::map<uint64_t, Callback> callbacks ABSL_GUARDED_BY(mutex);
  uint64_t next_handle ABSL_GUARDED_BY(mutex) = 1;
  // At 0 the token never fires. The last source and add() must not miss each other: the source stores
  // `sources` before it reads `has_callbacks`, and add() does the same in the other order.
  std::atomic<int> sources{1};
  std::atomic<bool> has_callbacks{false};
};

absl::Status CancellationToken::reason() const {
  if (state_ == nullptr) return absl::OkStatus();
  MutexLock lock(state_->mutex);
  return state_->reason;
}

uint64_t CancellationToken::add(absl::AnyInvocable<void()> callback, bool is_inline) const {
  if (state_ == nullptr) return 0;
  {
    MutexLock lock(state_->mutex);
    if (state_->reason.ok()) {
      state_->has_callbacks.store(true);
      if (state_->sources.load() == 0) return 0;
      state_->callbacks.emplace(state_->next_handle, State::Callback{std::move(callback), is_inline});
      return state_->next_handle++;
    }
  }
  // The token has fired before. Run the callback without the lock, because it may use the token.
  callback();
  return 0;
}

// The state usually holds the call, which holds the token. The cycle ends with the last source.
uint64_t CancellationToken::on_cancelled(absl::AnyInvocable<void()> callback) const {
  return add(
      [state = ExecutionState::capture(), callback = std::move(callback)]() mutable {
        const ScopedExecutionState scope(state);
        callback();
        // Destroyed in the same state.
        callback = nullptr;
      },
      /*is_inline=*/false);
}

uint64_t CancellationToken::on_cancelled_inline(absl::AnyInvocable<void()> callback) const {
  return add(std::move(callback), /*is_inline=*/true);
}

// If cancel() has taken the callbacks already, the callback is not in the table any more: it is running or
// will run, and this call has no effect.
void CancellationToken::forget(uint64_t handle) const {
  if (state_ == nullptr) return;
  State::Callback dropped;  // Destroyed outside the lock.
  MutexLock lock(state_->mutex);
  auto found = state_->callbacks.find(handle);
  if (found == state_->callbacks.end()) return;
  dropped = std::move(found->second);
  state_->callbacks.erase(found);
}

CancellationSource::CancellationSource() : state_(std::make_shared<CancellationToken::State>()) {}

CancellationSource::CancellationSource(const CancellationSource& other) : state_(other.state_) {
  state_->sources.fetch_add(1, std::memory_order_relaxed);
}

void CancellationSource::leave() const {
  if (state_->sources.fetch_sub(1) > 1 || !state_->has_callbacks.load()) return;
  std::map<uint64_t, CancellationToken::State::Callback> dropped;  // Destroyed outside the lock.
  MutexLock lock(state_->mutex);
  dropped.swap(state_->callbacks);
}

void CancellationSource::cancel(absl::Status reason, Executor* executor) const {
  std::map<uint64_t, CancellationToken::State::Callback> callbacks;
  {
    MutexLock lock(state_->mutex);
    if (!state_->reason.ok()) return;
    state_->reason = reason.ok() ? absl::CancelledError("cancelled") : std::move(reason);
    callbacks.swap(state_->callbacks);
  }
  // Run without the lock: a callback may call reason(), forget() or on_cancelled(). The first reason was
  // stored above, so a callback that is registered from now on runs at once.
  for (auto& [handle, callback] : callbacks) {
    if (callback.is_inline || executor == nullptr) {
      run_contained("a callback of a cancellation token", callback.run);
    } else {
      executor->post_clean_or_run(std::move(callback.run));
    }
  }
}

}  // namespace gradwire
