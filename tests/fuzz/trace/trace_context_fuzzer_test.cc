#include <initializer_list>
#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

TEST(TraceContextFuzzer, SeededMutationsOfHeaders) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto one_of = [&random](std::initializer_list<const char*> texts) {
      return std::string(texts.begin()[random() % texts.size()]);
    };
    std::string text = one_of({"00", "01", "fe"}) + "-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" +
                       one_of({"00", "01", "ff"}) + one_of({"", "", "-more"}) + "\n";
    for (unsigned i = random() % 40; i > 0; --i) {
      text += one_of({"a", "b@c", "rojo", "k-_*/", "0"}) + std::to_string(random() % 50) + "=" +
              std::string(random() % 3 == 0 ? random() % 260 : random() % 9 + 1, 'v') +
              one_of({",", " , ", ",,"});
    }
    if (random() % 2 == 0) fuzzing::mutate(text, random);
    fuzzing::run(text);
    fuzzing::run(fuzzing::random_bytes(random() % 100, random));
  }
}

}  // namespace
}  // namespace gradwire::rpc
