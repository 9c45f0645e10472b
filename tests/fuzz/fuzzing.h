#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

// What the fuzzers of this folder, and the tests that run them, have in common.

// libFuzzer's entry point; each fuzzer defines it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

namespace gradwire::fuzzing {

// Stops the process unless `condition` holds, as libFuzzer wants it.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzzer: %s\n", what);
  std::abort();
}

// A little-endian integer, for oracles: written apart from what the parsers use.
inline uint64_t number_at(const char* bytes, int size) {
  uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i) value = value * 256 + static_cast<unsigned char>(bytes[i]);
  return value;
}

// Takes an input apart; what is beyond its end is zero.
class Input {
 public:
  Input(const uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint64_t number(int size) {
    const std::string bytes = text(static_cast<std::size_t>(size));
    char all[8] = {};
    bytes.copy(all, sizeof(all));
    return number_at(all, 8);
  }
  // Shorter at the end.
  std::string text(std::size_t size) {
    size = std::min(size, left_);
    std::string result(reinterpret_cast<const char*>(data_), size);
    data_ += size;
    left_ -= size;
    return result;
  }
  std::string rest() { return text(left_); }

 private:
  const uint8_t* data_;
  std::size_t left_;
};

// Changes up to three places of `bytes`.
inline void mutate(std::string& bytes, std::mt19937& random) {
  for (int count = static_cast<int>(random() % 4); count > 0 && !bytes.empty(); --count) {
    // Most of what matters lies in the first bytes.
    const std::size_t at =
        random() % (random() % 2 == 0 ? std::min<std::size_t>(bytes.size(), 80) : bytes.size());
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes.erase(at, random() % 20);
        break;
      case 3:
        bytes.insert(at, random() % 20, static_cast<char>(random() % 2 == 0 ? 0 : 0xff));
        break;
      case 4:
        bytes.resize(at);
        break;
    }
  }
}

inline std::string random_bytes(std::size_t size, std::mt19937& random) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

inline void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace gradwire::fuzzing
