#include <initializer_list>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gtest/gtest.h"

namespace gradwire::inspect {
namespace {

// An event with fields that are often right.
std::string event(std::mt19937& random) {
  const auto one_of = [&random](std::initializer_list<const char*> texts) {
    return *(texts.begin() + random() % texts.size());
  };
  return absl::StrCat(R"({"ph":")", one_of({"X", "X", "X", "M", "i"}), R"(","cat":"cpu_op","name":)",
                      one_of({"\"aten::mul\"", "\"\\u0007\"", "7", "\"\""}), R"(,"pid":)",
                      one_of({"12", "12", "0", "\"Spans\"", "99999999999999999999"}), R"(,"tid":)",
                      one_of({"12", "7", "-1", "\"main\""}), R"(,"ts":)",
                      one_of({"12.500", "0", "-5", "1e300", "1700000000000000", "null"}), R"(,"dur":)",
                      one_of({"3.250", "0", "-1", "1e16", "[]"}),
                      one_of({"", R"(,"args":{"ts":1,"dims":[[4],[]]})", ",\"args\":{}"}), "}");
}

TEST(ProfileFuzzer, FilesWithMistakesKeepThePromises) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string events;
    for (std::size_t count = random() % 30; count > 0; --count)
      absl::StrAppend(&events, events.empty() ? "" : ",", event(random));
    std::string text = absl::StrCat("{\"traceEvents\":[", events, "]");
    const unsigned base = static_cast<unsigned>(random() % 4);
    if (base > 0) {
      absl::StrAppend(&text, ",\"baseTimeNanoseconds\":",
                      base == 1   ? "1790857026000000000"
                      : base == 2 ? "18446744073709551615"
                                  : "-1");
    }
    text += "}";
    if (random() % 2 == 0) fuzzing::mutate(text, random);
    fuzzing::run(text);
  }
}

}  // namespace
}  // namespace gradwire::inspect
