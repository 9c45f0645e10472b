#include "gradwire/tests/fuzz/shm_fuzzer.h"

#include <random>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TEST(ShmFuzzer, WhateverTheOtherEndDoesTheTransportKeepsItsPromises) {
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    fuzzing::run(fuzzing::random_bytes(random() % 600, random));
  }
}

TEST(ShmFuzzer, WheneverTheOtherEndWritesTheTransportKeepsItsPromises) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    run_shm_storm(seed);
  }
}

}  // namespace
}  // namespace gradwire::transport
