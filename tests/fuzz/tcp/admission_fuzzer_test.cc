#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TEST(AdmissionFuzzer, SeededSocketsAreDecidedByTheRules) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    fuzzing::run(fuzzing::random_bytes(random() % 400, random));
  }
}

TEST(AdmissionFuzzer, CrowdsOfOneHostAreDecidedByTheRules) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes = {static_cast<char>(random() % 12), static_cast<char>(random() % 8), 4};
    for (int i = 0; i < 100; ++i) {
      bytes += static_cast<char>(random() % 4 == 0 ? random() % 6 : 0);
      bytes += static_cast<char>(random() % 8 == 0 ? random() : 0);
    }
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::transport
