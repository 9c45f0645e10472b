#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

// Test data that changes with every call and can be checked without a second copy.
namespace gradwire::bench {

// Returns the word at `index` of the pattern with this seed.
inline uint64_t pattern_word(uint64_t seed, uint64_t index) {
  return (seed + 1) * 0x9E3779B97F4A7C15u + index;
}

// Fills `data` with the pattern. `size` must be a multiple of 8.
inline void fill_pattern(void* data, std::size_t size, uint64_t seed) {
  auto* words = static_cast<uint64_t*>(data);
  for (std::size_t i = 0; i < size / 8; ++i) words[i] = pattern_word(seed, i);
}

// Throws std::runtime_error unless `data` contains the pattern of fill_pattern().
inline void check_pattern(const void* data, std::size_t size, uint64_t seed) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t difference = 0;
  for (std::size_t i = 0; i < size / 8; ++i) difference |= words[i] ^ pattern_word(seed, i);
  if (difference != 0)
    throw std::runtime_error("wrong contents: the received bytes differ from the sent ones");
}

// Fills `data` with numbers whose sum is known, and returns the sum. `floats` must be a multiple of 8.
inline double fill_summands(float* data, int64_t floats, uint64_t seed) {
  const auto base = static_cast<float>(seed % 7 + 1);
  for (int64_t i = 0; i < floats; ++i) data[i] = base + static_cast<float>(i & 7);
  return static_cast<double>(floats) * (static_cast<double>(base) + 3.5);
}

// Throws std::runtime_error unless the two agree to a relative error of 1e-4.
inline void check_sum(double got, double want) {
  if (!(got > want * 0.9999 && got < want * 1.0001)) {
    throw std::runtime_error("wrong sum: got " + std::to_string(got) + ", expected " + std::to_string(want));
  }
}

}  // namespace gradwire::bench
