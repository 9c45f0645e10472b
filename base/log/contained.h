#pragma once

#include <exception>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "gradwire/base/error.h"

namespace gradwire {

// Logs the exception that is being handled, with what has thrown it.
void log_exception(const char* what) noexcept;

// Runs a step of the library for which nobody waits: an exception of it is logged, and whatever comes behind
// the step goes on. Not for a step whose outcome somebody waits for, who must get the error. Returns whether
// the step has ended without an exception.
template <class F>
bool run_contained(const char* what, F&& step) noexcept {
  try {
    std::forward<F>(step)();
    return true;
  } catch (...) {
    log_exception(what);
    return false;
  }
}

// Ends the process with a message that names `what` and the exception that is being handled. Allocates no
// memory.
[[noreturn]] void end_process(const char* what) noexcept;

// Runs a step of the library without which others would wait without end, and which can neither be taken back
// nor tried again. An exception ends the process.
template <class F>
void run_or_end(const char* what, F&& step) noexcept {
  try {
    std::forward<F>(step)();
  } catch (...) {
    end_process(what);
  }
}

// The boundary in a callback of a C library or of gRPC, whose frames an exception must not cross. Returns
// what `step` returns. If it throws, the exception is logged and `failed` is called with it as a status: it
// ends what the callback works for, and its result is returned. An exception of `failed` ends the process.
template <class F, class Failed>
std::invoke_result_t<F&> at_boundary(const char* what, F&& step, Failed&& failed) noexcept {
  try {
    return step();
  } catch (...) {
    log_exception(what);
    try {
      return failed(caught(what));
    } catch (...) {
      end_process(what);
    }
  }
}

}  // namespace gradwire
