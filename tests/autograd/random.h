#pragma once

#include <cstdint>
#include <vector>

namespace programs {

// A fast generator of random numbers (splitmix64). The same seed gives the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Returns a number in [0, n). `n` must be positive.
  uint64_t below(uint64_t n) { return (static_cast<unsigned __int128>(next()) * n) >> 64; }
  // Returns a number in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low + 1)));
  }
  // Returns true with a probability of n percent.
  bool percent(uint32_t n) { return n != 0 && below(100) < n; }
  // Returns a random element of the list, which must not be empty.
  template <class T>
  T of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

 private:
  uint64_t state_;
};

}  // namespace programs
