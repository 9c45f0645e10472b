#include "gradwire/base/threads/nested_callbacks.h"

#include <deque>
#include <new>
#include <utility>

#include "gradwire/base/log/contained.h"

namespace gradwire {
namespace {

struct Deferred {
  absl::AnyInvocable<void()> callback;
  const char* what;
};

constexpr int kMostNested = 16;
thread_local int nested = 0;
thread_local std::deque<Deferred> deferred;

void run_and_destroy(absl::AnyInvocable<void()>& callback, const char* what) noexcept {
  run_contained(what, callback);
  callback = nullptr;
}

void run_deferred() noexcept {
  while (!deferred.empty()) {
    Deferred next = std::move(deferred.front());
    deferred.pop_front();
    run_and_destroy(next.callback, next.what);
  }
}

}  // namespace

void run_nested(absl::AnyInvocable<void()>&& callback, const char* what) noexcept {
  if (nested == kMostNested) {
    try {
      deferred.push_back({std::move(callback), what});
      return;
    } catch (const std::bad_alloc&) {
      // Rather a deep stack than a callback that never runs.
      run_and_destroy(callback, what);
      return;
    }
  }
  ++nested;
  run_and_destroy(callback, what);
  if (nested == kMostNested) run_deferred();
  --nested;
}

void run_deferred_callbacks() noexcept {
  // Callbacks that these cause are deferred again, and run here too.
  const int before = std::exchange(nested, kMostNested);
  run_deferred();
  nested = before;
}

}  // namespace gradwire
