#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire::lag {

// The value of each 16 bits of memory that nobody may read: a NaN in every floating-point type, a large
// number in every integer type, and an index out of range.
inline constexpr uint16_t kPoison = 0x7ffd;

// Fills memory with poison. `data` has an even address.
inline void poison(void* data, size_t size) {
  constexpr uint64_t kFour = 0x0001000100010001u * kPoison;
  auto* bytes = static_cast<unsigned char*>(data);
  size_t at = 0;
  for (; at + sizeof(kFour) <= size; at += sizeof(kFour)) std::memcpy(bytes + at, &kFour, sizeof(kFour));
  std::memcpy(bytes + at, &kFour, size - at);
}

// Whether all bytes are poison. `data` has an even address.
inline bool is_poison(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; i++) {
    if (bytes[i] != ((kPoison >> (8 * (i % 2))) & 0xff)) return false;
  }
  return true;
}

}  // namespace gradwire::lag
