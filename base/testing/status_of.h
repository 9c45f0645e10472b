#pragma once

#include <exception>
#include <functional>

#include "absl/status/status.h"
#include "gradwire/base/error.h"

namespace gradwire {

// For tests: the status of the Error that `action` throws, or OK if it returns. worker_of() names the worker.
// Other exceptions pass through and fail the test.
inline absl::Status status_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

// As status_of(), but every exception becomes a status, as status_from_exception() does: also those of
// libtorch and of the standard library.
inline absl::Status thrown_by(const std::function<void()>& action) {
  try {
    action();
  } catch (...) {
    return status_from_exception(std::current_exception());
  }
  return absl::OkStatus();
}

}  // namespace gradwire
