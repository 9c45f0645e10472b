#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace gradwire {

class CancellationSource;

// Tells running work that nobody wants its result any more, and why. Copyable; thread-safe.
class CancellationToken {
 public:
  // A token that never fires.
  CancellationToken() = default;

  bool cancelled() const { return !reason().ok(); }
  // OK until it fires.
  absl::Status reason() const;
  // `callback` runs once, on the cancelling thread, or at once if the token has fired (and 0 is returned).
  // Returns a handle for forget(). A callback that holds the token itself must be forgotten, or both live for
  // ever.
  uint64_t on_cancelled(absl::AnyInvocable<void()> callback) const;
  // Drops the callback; it does not wait for one that is running.
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
  // Callbacks run inside. An OK reason becomes Cancelled.
  void cancel(absl::Status reason) const;

 private:
  std::shared_ptr<CancellationToken::State> state_;
};

}  // namespace gradwire
