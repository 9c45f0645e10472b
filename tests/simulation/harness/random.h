#pragma once

#include <cstdint>

namespace gradwire::simulation {

// A fast pseudo-random number generator (splitmix64). The same seed gives the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Returns a number in [0, n). Requires n > 0.
  uint64_t below(uint64_t n) { return (static_cast<unsigned __int128>(next()) * n) >> 64; }
  // Returns a number in [low, high].
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(below(high - low + 1)); }
  // Returns true with probability n/1000.
  bool per_mille(uint32_t n) { return n != 0 && below(1000) < n; }

 private:
  uint64_t state_;
};

}  // namespace gradwire::simulation
