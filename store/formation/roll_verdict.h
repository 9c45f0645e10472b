#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace gradwire::store {

// What the processes hear that wait for a group to be complete.
struct RollVerdict {
  // OK: it is.
  absl::Status refusal;
  // How many it was meant to have, by whoever said the most.
  int ranks = 0;
  // When the group was refused, in unix_seconds(), since other machines compare it.
  int64_t time = 0;

  bool complete() const { return refusal.ok(); }
  std::string text() const;
  // None for what is no verdict; bounded.
  static std::optional<RollVerdict> read(const std::string& text);
};

}  // namespace gradwire::store
