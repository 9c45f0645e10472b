#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

std::string two_bytes(unsigned number) {
  return {static_cast<char>(number % 256), static_cast<char>(number / 256)};
}

// An action of the peer, of the network or of the stream (tls_stream_fuzzer.cc) with its numbers.
std::string action(unsigned kind, std::mt19937& random) {
  std::string bytes(1, static_cast<char>(kind + 10 * (random() % 25)));
  switch (kind) {
    case 0:
    case 7:
      return bytes + two_bytes(random() % 20'000);
    case 1:
      return bytes + static_cast<char>(random() % 8);
    case 3: {
      const std::string plain = fuzzing::random_bytes(random() % 40, random);
      return bytes + static_cast<char>(plain.size()) + plain;
    }
    case 4:
      return bytes + two_bytes(random() % 3 == 0 ? 0xffff : random() % 200);
    case 5:
      return bytes + two_bytes(random() % 3 == 0 ? random() % 8 : random() % 20'000);
    case 6:
    case 9:
      return bytes + '\1' + two_bytes(random() % 300) + two_bytes(random() % 9000);
    default:
      return bytes;
  }
}

std::string role(std::mt19937& random) { return std::string(1, static_cast<char>(random() % 2)); }

TEST(TlsStreamFuzzer, RecordsOfAnHonestPeerAreReassembled) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const unsigned kinds[] = {0, 0, 1, 1, 5, 5, 6, 7, 9};
    std::string bytes = role(random);
    for (unsigned count = random() % 25; count > 0; --count) bytes += action(kinds[random() % 9], random);
    fuzzing::run(bytes);
  }
}

TEST(TlsStreamFuzzer, PeersWithACertificateMayDoAnything) {
  for (unsigned seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes = role(random);
    for (unsigned count = random() % 40; count > 0; --count) bytes += action(random() % 10, random);
    if (random() % 3 == 0) fuzzing::mutate(bytes, random);
    fuzzing::run(bytes);
  }
}

TEST(TlsStreamFuzzer, ManyNewKeysEndTheStream) {
  for (const char asks : {'\0', '\1'}) {
    std::string bytes(1, asks);
    for (int i = 0; i < 50; ++i) bytes += static_cast<char>(asks == 0 ? 2 : 242);
    fuzzing::run(bytes + std::string("\x09\x00\x00\x00", 4));
  }
}

}  // namespace
}  // namespace gradwire::security
