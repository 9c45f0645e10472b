#pragma once

#include "absl/functional/any_invocable.h"

// Callbacks that cause further callbacks, in chains whose length a program chooses: each future of a chain
// completes the next one; a call that fails passes the error on to the calls that wait for its result. At
// most 16 of them run one inside the other on a stack. Further ones run, in their order, when the innermost
// one has returned.
namespace gradwire {

// Runs `callback` on this thread, now or as above, and destroys it. Logs an exception, with `what` has thrown
// it.
void run_nested(absl::AnyInvocable<void()>&& callback, const char* what) noexcept;

// For a thread that is about to wait inside a callback: runs those that it has deferred. One of them may lead
// to what the thread waits for, and none should wait with it.
void run_deferred_callbacks() noexcept;

}  // namespace gradwire
