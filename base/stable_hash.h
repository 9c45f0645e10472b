#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gradwire {

// The same in every process, build and on every machine, unlike absl::Hash: for what processes compare or
// derive numbers from (FNV-1a). Not for what an adversary chooses.
constexpr uint64_t stable_hash(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace gradwire
