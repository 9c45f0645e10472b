#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>

// Helpers for the fuzzers of this folder and for the tests that run them.

// libFuzzer's entry point. Each fuzzer defines it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

namespace gradwire::fuzzing {

// Aborts the process unless `condition` is true, as libFuzzer expects.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzzer: %s\n", what);
  std::abort();
}

// Reads a little-endian integer, for oracles: it is independent of the code under test.
inline uint64_t number_at(const char* bytes, int size) {
  uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i) value = value * 256 + static_cast<unsigned char>(bytes[i]);
  return value;
}

// Splits an input into numbers and texts. Bytes beyond its end are zero.
class Input {
 public:
  Input(const uint8_t* data, std::size_t size) : data_(data), remaining_(size) {}
  bool empty() const { return remaining_ == 0; }
  uint64_t number(int size) {
    const std::string bytes = text(static_cast<std::size_t>(size));
    char all[8] = {};
    bytes.copy(all, sizeof(all));
    return number_at(all, 8);
  }
  // Returns fewer bytes at the end of the input.
  std::string text(std::size_t size) {
    size = std::min(size, remaining_);
    std::string result(reinterpret_cast<const char*>(data_), size);
    data_ += size;
    remaining_ -= size;
    return result;
  }
  std::string rest() { return text(remaining_); }

 private:
  const uint8_t* data_;
  std::size_t remaining_;
};

// Makes up to three random changes to `bytes`.
inline void mutate(std::string& bytes, std::mt19937& random) {
  for (int count = static_cast<int>(random() % 4); count > 0 && !bytes.empty(); --count) {
    // Most of the important fields are in the first bytes.
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

inline void run_without_recording(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// Calls the entry point. If GRADWIRE_FUZZ_RECORD names a folder, which tools/fuzz --reseed does, the input is
// written to a file there instead.
inline void run(const std::string& bytes) {
  const char* const folder = std::getenv("GRADWIRE_FUZZ_RECORD");
  if (folder == nullptr) return run_without_recording(bytes);
  // The same input is written once.
  const std::string name = std::to_string(std::hash<std::string>()(bytes));
  std::ofstream(folder + ("/" + name), std::ios::binary) << bytes;
}

}  // namespace gradwire::fuzzing
