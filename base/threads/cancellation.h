#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "gradwire/base/threads/executor.h"

namespace gradwire {

class CancellationSource;

// Notifies running work that its result is no longer wanted, and why. Copyable; thread-safe.
class CancellationToken {
 public:
  // A token that never fires.
  CancellationToken() = default;

  bool cancelled() const { return !reason().ok(); }
  // OK until the token fires, then the reason.
  absl::Status reason() const;
  // `callback` runs once, in the ExecutionState of this call: on the executor that
  // CancellationSource::cancel() gets, so that it may wait, or else inside cancel(). It may run after the
  // work has ended. If the token has already fired, it runs at once and 0 is returned. Otherwise returns a
  // handle for forget(). When the last source of the token is destroyed, the callback is dropped.
  uint64_t on_cancelled(absl::AnyInvocable<void()> callback) const;
  // As on_cancelled(), but `callback` runs inside cancel() in any case, which may be called by a thread on
  // duty (base/duty.h): it must neither wait nor run code of the program.
  uint64_t on_cancelled_inline(absl::AnyInvocable<void()> callback) const;
  // Drops the callback. Does not wait for a callback that is running.
  void forget(uint64_t handle) const;

 private:
  friend class CancellationSource;
  struct State;
  explicit CancellationToken(std::shared_ptr<State> state) : state_(std::move(state)) {}
  uint64_t add(absl::AnyInvocable<void()> callback, bool is_inline) const;

  std::shared_ptr<State> state_;
};

// Fires its tokens; the first reason wins. Copyable; thread-safe.
class CancellationSource {
 public:
  CancellationSource();
  CancellationSource(const CancellationSource& other);
  CancellationSource(CancellationSource&&) = default;
  CancellationSource& operator=(CancellationSource other) {
    state_.swap(other.state_);
    return *this;
  }
  ~CancellationSource() {
    if (state_ != nullptr) leave();
  }
  CancellationToken token() const { return CancellationToken(state_); }
  // The callbacks of on_cancelled() run on `executor`, each as a task of its own. Without one, or after its
  // shutdown, they run inside this call. An OK reason is replaced by Cancelled.
  void cancel(absl::Status reason, Executor* executor = nullptr) const;

 private:
  void leave() const;

  std::shared_ptr<CancellationToken::State> state_;
};

}  // namespace gradwire
