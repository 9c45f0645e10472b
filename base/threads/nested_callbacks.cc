#include "gradwire/base/threads/nested_callbacks.h"

#include <list>
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
// A list needs no memory until it has an element: a variable of a thread whose constructor throws stays
// broken.
thread_local std::list<Deferred> deferred;

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
      deferred.push_back({nullptr, what});
      deferred.back().callback = std::move(callback);
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
