#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/transport/tcp/wire/preface.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TEST(PrefaceFuzzer, SeededMutationsMatchTheFormat) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Preface preface{.token = {random() * 0x100000001ull, random() * 0x100000001ull}};
    preface.proof = static_cast<Preface::Proof>(random() % 3);
    if (random() % 2 == 0) {
      preface.kind = Preface::Kind::kStripe;
      preface.stripes = static_cast<int>(random() % 10);
      preface.stripe = static_cast<int>(random() % 10);
    }
    std::string bytes = preface.encode();
    fuzzing::mutate(bytes, random);
    fuzzing::run(bytes);
  }
}

}  // namespace
}  // namespace gradwire::transport
