#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradwire {

// FNV-1a hash. Unlike absl::Hash it is the same in every process, build and machine, so processes can compare
// it or derive numbers from it. It does not resist chosen collisions: do not use it for untrusted input.
constexpr uint64_t stable_hash(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace gradwire
