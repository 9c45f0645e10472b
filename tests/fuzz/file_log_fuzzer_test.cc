#include <random>
#include <string>

#include "gradwire/base/stable_hash.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

std::string number(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

TEST(FileLogFuzzer, SeededMutationsMatchTheFormat) {
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string file = "gradwire store 1";
    for (std::size_t records = random() % 6; records > 0; --records) {
      const std::string body = fuzzing::random_bytes(random() % 40, random);
      file += number(body.size()) + number(stable_hash(body)) + body;
    }
    if (random() % 4 == 0) {
      file.resize(random() % (file.size() + 1));
    } else {
      fuzzing::mutate(file, random);
    }
    fuzzing::run(file);
  }
}

}  // namespace
}  // namespace gradwire::store
