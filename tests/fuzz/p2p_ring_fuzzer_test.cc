#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

// A cell that is nearly a record: small numbers, and positions around the end of the ring.
std::string random_cell(std::mt19937& random) {
  uint64_t words[7] = {};
  const uint64_t sizes[] = {0, 1, 40, 41, 16'384, 16'385, random() % 20'000};
  const uint64_t places[] = {0, 64, 65'535, 65'536, 49'152, ~uint64_t{0}, random() % 70'000};
  words[0] = random() % 10 | random() % 3 << 8 | sizes[random() % 7] << 32;
  words[1] = random();
  words[2] = random();
  words[3] = random();
  words[4] = places[random() % 7];
  return std::string(reinterpret_cast<const char*>(words), sizeof(words));
}

TEST(P2pRingFuzzer, RecordsOfAHostileWriterAreBounded) {
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes(1, '\0');
    for (std::size_t cells = random() % 20; cells > 0; --cells) bytes += random_cell(random);
    if (random() % 2 == 0) fuzzing::mutate(bytes, random);
    fuzzing::run(bytes);
  }
}

TEST(P2pRingFuzzer, HostileReaderKeepsTheWriterInBounds) {
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes(1, '\1');
    // Mostly actions of an honest reader.
    for (std::size_t steps = random() % 600; steps > 0; --steps) {
      bytes.push_back(static_cast<char>(random() % (random() % 20 == 0 ? 256 : 128)));
    }
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::collectives::cpu
