// Runs the committed corpus of a fuzzer in its ordinary test. So an input that once crashed is tried in each
// run, also where libFuzzer is missing.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::fuzzing {
namespace {

TEST(Corpus, EachInputKeepsThePromisesOfTheFuzzer) {
  const char* const folder = std::getenv("GRADWIRE_FUZZ_CORPUS");
  ASSERT_NE(folder, nullptr) << "the rule gradwire_fuzzer sets it";
  int inputs = 0;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      SCOPED_TRACE(file.path());
      std::ifstream stream(file.path(), std::ios::binary);
      run_without_recording({std::istreambuf_iterator<char>(stream), {}});
      ++inputs;
    }
  }
  EXPECT_GT(inputs, 0) << folder << " is empty; make it with: tools/fuzz --reseed NAME";
}

}  // namespace
}  // namespace gradwire::fuzzing
