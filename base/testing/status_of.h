#pragma once

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

}  // namespace gradwire
