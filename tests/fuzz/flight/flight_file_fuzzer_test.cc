#include <initializer_list>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::tools {
namespace {

std::string header(const char* worker, const char* incarnation) {
  return absl::StrCat(R"({"type":"flight","version":1,"source":"agent","reason":"why","process":12,)",
                      R"("wall_ns":2000000,"clock_ns":1000000,"worker":")", worker,
                      R"(","id":0,"incarnation":")", incarnation,
                      R"(","dump":"ordinary","capacity":4,"recorded":2})", "\n");
}

// A line of a call with fields that are often right.
std::string line(std::mt19937& random) {
  const auto one_of = [&random](std::initializer_list<const char*> texts) {
    return *(texts.begin() + random() % texts.size());
  };
  return absl::StrCat(R"({"type":")", one_of({"call", "open", "call", "pass", "worker", "end", "collective"}),
                      R"(","side":")", one_of({"made", "served", "served", "x"}), R"(","caller":")",
                      one_of({"0xa", "0xb", "0x0", "z"}), R"(","peer":")", one_of({"0xa", "0xb"}),
                      R"(","root":"0xa","incarnation":"0xb","number":)",
                      one_of({"1", "2", "3", "-1", "1e9", "99999999999999999999"}), R"(,"name":")",
                      one_of({"f", "", "\\u0000"}), R"(","parent":")", one_of({"call", "pass", "trace", ""}),
                      R"(","parent_worker":")", one_of({"0xa", "0xb"}), R"(","parent_number":)",
                      one_of({"1", "2", "3"}), R"(,"began":)", one_of({"100", "0", "2305843009213693951"}),
                      R"(,"since":)", one_of({"100", "[]"}), R"(,"started":)", one_of({"0", "110"}),
                      R"(,"ended":)", one_of({"0", "50", "200", "null"}), R"(,"code":"OK","state":")",
                      one_of({"sent", "running", ""}), "\"}\n");
}

TEST(FlightFileFuzzer, FilesWithMistakesKeepThePromises) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string text = header("a", "0xa");
    for (std::size_t lines = random() % 6; lines > 0; --lines) text += line(random);
    text += "---\n" + header("b", "0xb");
    for (std::size_t lines = random() % 6; lines > 0; --lines) text += line(random);
    if (random() % 2 == 0) fuzzing::mutate(text, random);
    fuzzing::run(text);
  }
}

}  // namespace
}  // namespace gradwire::tools
