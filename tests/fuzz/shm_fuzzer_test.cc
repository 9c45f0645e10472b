#include "gradwire/tests/fuzz/shm_fuzzer.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TEST(ShmFuzzer, WhateverTheOtherEndDoesTheTransportKeepsItsPromises) {
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(random() % 600);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
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
