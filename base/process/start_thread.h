#pragma once

#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/base/error.h"

namespace gradwire {

// Starts a thread that runs `run`. All threads of the library are started here. `name`: the kernel shows its
// first 15 characters.
//
// ResourceExhausted, with the name of the limit, if the system has no threads or no memory left for it; then
// `run` is destroyed without being called. That error is a local shortage (is_local_shortage), and the same
// call may succeed later.
absl::StatusOr<std::thread> start_thread(const std::string& name, absl::AnyInvocable<void()> run);

// Returns what `make` makes, an object whose constructor starts threads, and throws Error if it cannot, or
// that error.
template <class Make>
absl::StatusOr<std::invoke_result_t<Make&>> made_with_threads(Make&& make) {
  try {
    return make();
  } catch (const Error& error) {
    return error.status();
  }
}
// As made_with_threads(), for a T with a public constructor.
template <class T, class... Arguments>
absl::StatusOr<std::unique_ptr<T>> make_with_threads(Arguments&&... arguments) {
  return made_with_threads([&] { return std::make_unique<T>(std::forward<Arguments>(arguments)...); });
}

}  // namespace gradwire
