#include <random>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

const char* const kWords[] = {"allow",    "deny",      "default",    "a",        "trainer*",
                              "trainer0", "function",  "class",      "service",  "script",
                              "operator", "reference", "everything", "ps::push", "f",
                              "*",        "barrier",   "hold",       ",",        ",",
                              "#",        "\n",        "\r\n",       "\t",       "\"f<int, long>\"",
                              "\"",       "\\",        "**"};

// A rule that is usually right.
std::string rule(std::mt19937& random) {
  const auto one_of = [&random](std::initializer_list<const char*> words) {
    return std::string(words.begin()[random() % words.size()]);
  };
  const std::string kind = one_of({"function", "function", "class", "service", "everything"});
  std::string line =
      one_of({"allow ", "deny "}) + one_of({"a ", "trainer* ", "*,a ", "\"trainer0\" , b "}) + kind;
  if (kind == "service") line += one_of({" barrier", " *", " autograd, b*"});
  if (kind == "function" || kind == "class")
    line += one_of({" f", " ps::*", " *", " f, ps::push", " \"f<int, long>\"", " *::*,f#", " x"});
  return line + one_of({"\n", "\r\n", " # why\n", "\n\n"});
}

TEST(PolicyFuzzer, SeededMutationsOfRulesMatchTheFormat) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string text;
    for (unsigned i = random() % 5; i > 0; --i) text += rule(random);
    if (random() % 4 == 0) text += random() % 2 == 0 ? "default allow\n" : "default deny";
    if (random() % 2 == 0) fuzzing::mutate(text, random);
    fuzzing::run(text);
  }
}

TEST(PolicyFuzzer, RandomWordsMatchTheFormat) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string text;
    for (unsigned i = random() % 12; i > 0; --i) {
      text += kWords[random() % std::size(kWords)];
      if (random() % 4 != 0) text += ' ';
    }
    fuzzing::run(text);
    fuzzing::run(fuzzing::random_bytes(random() % 100, random));
  }
}

}  // namespace
}  // namespace gradwire::security
