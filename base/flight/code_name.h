#pragma once

#include "absl/strings/string_view.h"

namespace gradwire {

// The name of an absl::StatusCode, "DEADLINE_EXCEEDED" for example; "?" for another value. As
// absl::StatusCodeToString(), without its allocation. Async-signal-safe.
inline absl::string_view code_name(unsigned code) {
  constexpr absl::string_view kNames[] = {
      "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED",
  };
  return code < sizeof(kNames) / sizeof(*kNames) ? kNames[code] : "?";
}

}  // namespace gradwire
