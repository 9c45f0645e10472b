#pragma once

#include <cstddef>
#include <cstdint>

// Constants and functions that the writer and the parser of frames (frame.h) share.
namespace gradwire::transport::frame_format {

inline constexpr char kMagic[4] = {'G', 'W', 'f', '1'};
inline constexpr char kVersion = 2;
inline constexpr char kMessageKind = 0;
inline constexpr char kControlKind = 1;
// The bit of a size that marks a striped buffer.
inline constexpr uint64_t kStripedBit = uint64_t{1} << 63;
inline constexpr uint64_t kMaxControlBytes = 64;

template <class Integer>
void write_integer(char* bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
}

template <class Integer>
Integer read_integer(const char* bytes) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    value |= static_cast<Integer>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

}  // namespace gradwire::transport::frame_format
