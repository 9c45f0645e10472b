#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

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
  // `callback` runs once, on the cancelling thread. If the token has already fired, it runs at once and 0 is
  // returned. Otherwise returns a handle for forget(). A callback that holds the token keeps it alive (a
  // reference cycle), so it must be removed with forget().
  uint64_t on_cancelled(absl::AnyInvocable<void()> callback) const;
  // Drops the callback. Does not wait for a callback that is running.
  void forget(uint64_t handle) const;

 private:
  friend class CancellationSource;
  struct State;
  explicit CancellationToken(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// Fires its tokens; the first reason wins.
class CancellationSource {
 public:
  CancellationSource();
  CancellationToken token() const { return CancellationToken(state_); }
  // Callbacks run inside this call. An OK reason is replaced by Cancelled.
  void cancel(absl::Status reason) const;

 private:
  std::shared_ptr<CancellationToken::State> state_;
};

}  // namespace gradwire
